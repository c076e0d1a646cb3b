"""Files of a warehouse that Java reaches: an object store, HDFS."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from outbox_etl.warehouse.evidence import StateFile

WITH_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*:)?/*")


class JavaPlace:
    """Reads files through Java."""

    def __init__(
        self,
        jvm: Any,
        open_file: Callable[[str], Any],
        list_folder: Callable[[str], Iterator[tuple[str, int]]],
    ) -> None:
        """Take what opens a file as Java's stream, and what lists a folder with all below it: names and bytes."""
        self._bytes = jvm.org.apache.commons.io.IOUtils.toByteArray
        self._open, self._list = open_file, list_folder

    @classmethod
    def of_iceberg(cls, jvm: Any, io: Any) -> JavaPlace:
        """The files of Iceberg's FileIO."""

        def listed(folder: str) -> Iterator[tuple[str, int]]:
            found = io.listPrefix(folder).iterator()
            while found.hasNext():
                file = found.next()
                yield str(file.location()), int(file.size())

        return cls(jvm, lambda location: io.newInputFile(location).newStream(), listed)

    @classmethod
    def of_hadoop(cls, jvm: Any, root: str, configuration: Any) -> JavaPlace:
        """The files of Hadoop's file system that has this folder."""
        path = jvm.org.apache.hadoop.fs.Path
        files = path(root).getFileSystem(configuration)

        def listed(folder: str) -> Iterator[tuple[str, int]]:
            found = files.listFiles(path(folder), True)
            while found.hasNext():
                file = found.next()
                yield str(file.getPath().toString()), int(file.getLen())

        return cls(jvm, lambda location: files.open(path(location)), listed)

    def read(self, location: str) -> bytes:
        """The content of a small file."""
        try:
            stream = self._open(location)
            try:
                return bytes(self._bytes(stream))
            finally:
                stream.close()
        except Exception as error:
            if any(name in str(error) for name in ("FileNotFound", "NotFoundException", "NoSuchKey")):
                raise FileNotFoundError(f"{location} is gone") from error
            raise

    def wrong(self, files: Sequence[StateFile], roots: Sequence[str]) -> str:
        """Return which file is gone or of another size. All are listed, because each question takes a request."""
        there = {_plain(name): size for root in roots for name, size in self._list(root)} if files else {}
        for file in files:
            size = there.get(_plain(file.location))
            if size is None:
                return f"the file {file.location} is gone"
            if (file.size and size != file.size) or size == 0:
                return f"the file {file.location} is not as long as it was written"
        return ""


def _plain(location: str) -> str:
    """A location without its scheme, which one file has several of."""
    return WITH_SCHEME.sub("", location)
