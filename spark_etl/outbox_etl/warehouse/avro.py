"""Avro's container files as Iceberg writes its manifests: read with the standard library alone."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

MAGIC = b"Obj\x01"
Decode = Callable[[BytesIO], Any]


def records(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the records of a file.

    Raises:
        ValueError: it is truncated, damaged, or written in another way than Iceberg's.
    """
    source = BytesIO(data)
    if source.read(4) != MAGIC:
        raise ValueError("not an Avro file")
    header: dict[str, bytes] = _map(_bytes)(source)
    marker, codec = source.read(16), header.get("avro.codec", b"null")
    if codec not in (b"null", b"deflate"):
        raise ValueError(f"compressed by {codec.decode()}")
    decode = _decoder(json.loads(header["avro.schema"]), {})
    while source.tell() < len(data):
        count, size = _long(source), _long(source)
        block = _exactly(source, size)
        try:
            block = zlib.decompress(block, -15) if codec == b"deflate" else block
        except zlib.error as error:
            raise ValueError(str(error)) from error
        rows = BytesIO(block)
        yield from (decode(rows) for _ in range(count))
        if _exactly(source, 16) != marker:
            raise ValueError("a block ends elsewhere")


def _exactly(source: BytesIO, size: int) -> bytes:
    found = source.read(size)
    if size < 0 or len(found) != size:
        raise ValueError("it is truncated")
    return found


def _long(source: BytesIO) -> int:
    value = shift = 0
    while True:
        byte = _exactly(source, 1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1)
        shift += 7


def _bytes(source: BytesIO) -> bytes:
    return _exactly(source, _long(source))


def _text(source: BytesIO) -> str:
    return _bytes(source).decode()


def _blocks(source: BytesIO) -> Iterator[None]:
    """Once for each item of an array or a map, which come in blocks."""
    while count := _long(source):
        if count < 0:  # (with the block's size)
            count = -count
            _long(source)
        for _ in range(count):
            yield


def _map(value: Decode) -> Decode:
    return lambda source: {_text(source): value(source) for _ in _blocks(source)}


PLAIN: Mapping[str, Decode] = {
    "null": lambda _: None,
    "boolean": lambda source: _exactly(source, 1) != b"\0",
    "int": _long,
    "long": _long,
    "float": lambda source: struct.unpack("<f", _exactly(source, 4))[0],
    "double": lambda source: struct.unpack("<d", _exactly(source, 8))[0],
    "bytes": _bytes,
    "string": _text,
}


def _decoder(schema: Any, named: dict[str, Decode]) -> Decode:
    """Build what decodes a value of a schema; `named` are the types that it defines by name."""
    if isinstance(schema, list):
        return _union([_decoder(each, named) for each in schema])
    if isinstance(schema, str):
        return PLAIN[schema] if schema in PLAIN else named[schema]
    kind = schema["type"]
    if kind == "record":
        fields = [(field["name"], _decoder(field["type"], named)) for field in schema["fields"]]
        decode: Decode = lambda source: {name: read(source) for name, read in fields}  # noqa: E731
    elif kind == "fixed":
        decode = lambda source: _exactly(source, schema["size"])  # noqa: E731
    elif kind == "array":
        item = _decoder(schema["items"], named)
        return lambda source: [item(source) for _ in _blocks(source)]
    elif kind == "map":
        return _map(_decoder(schema["values"], named))
    else:
        return _decoder(kind, named)
    named[schema["name"]] = decode
    return decode


def _union(choices: Sequence[Decode]) -> Decode:
    return lambda source: choices[_long(source)](source)
