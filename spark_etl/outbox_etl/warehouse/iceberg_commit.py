"""Files that are written, committed to an Iceberg table as Spark's own overwrite would be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from outbox_etl.warehouse.files import Between, date_of, local_path
from outbox_etl.warehouse.iceberg_files import expression, is_hadoop
from outbox_etl.warehouse.iceberg_state import SIGNED
from outbox_etl.warehouse.tables import Table

WrittenFile = tuple[str, int, int]
"""A file: its path, its day (days since 1970), its bytes."""
LIKE_OURS = ("write.parquet.", "write.format.", "write.data.", "write.object-storage.", "write.folder-storage.",
             "write.location-provider.", "write.target-file-size", "encryption.")  # fmt: skip
"""Properties of a table that decide what its files are and where they lie."""
REFUSED, UNKNOWN = ("ValidationException", "CommitFailedException"), "CommitStateUnknownException"
"""Iceberg's names of errors after which a commit has certainly not been done, and after which it may have been."""


def why_not(table: Any, of: Table, properties: Mapping[str, str]) -> str:
    """Return what in an Iceberg table asks for Spark's own writer; empty: nothing does.

    Args:
        table: Iceberg's.
        of: the table that it is: partitioned by its day alone.
        properties: those that the job gives its tables.
    """
    if not is_hadoop(table):
        return "the catalog has another way to files"
    root = local_path(str(table.location()))
    if not (root and Path(root).is_dir()):
        return "the warehouse is not on this machine"
    spec = table.spec()
    fields = [(str(each.name()), str(each.transform())) for each in spec.fields()]
    if fields != [(f"{of.day}_day", "day") if of.day_is_time else (of.day, "identity")]:
        return "the table is partitioned in another way"
    if table.operations().current().formatVersion() != int(properties["format-version"]):
        return "the table has another format version"
    found = {str(name): str(value) for name, value in dict(table.properties()).items()}
    names = {name for name in {**found, **properties} if name.startswith(LIKE_OURS)}
    other = sorted(name for name in names if found.get(name) != properties.get(name))
    return f"the table's property {other[0]} is not the job's" if other else ""


def is_refused(error: Exception) -> bool:
    """Whether a commit that raised this has certainly not been done: the table names none of its files."""
    return UNKNOWN not in str(error) and any(each in str(error) for each in REFUSED)


def schema_of(table: Any) -> bytes:
    """The columns of the table's files, each with Iceberg's id, as Arrow's serialization."""
    import pyarrow as pa  # noqa: PLC0415

    return bytes(pa.schema([_field(each) for each in table.schema().columns()]).serialize())


def _field(each: Any) -> Any:
    return _named(str(each.name()), int(each.fieldId()), each.type(), is_optional=each.isOptional())


def _named(name: str, number: int, kind: Any, *, is_optional: bool) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    return pa.field(name, _type(kind), nullable=is_optional, metadata={"PARQUET:field_id": str(number)})


def _type(kind: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    if kind.isListType():
        parts = kind.asListType()
        optional = parts.isElementOptional()
        return pa.list_(_named("element", parts.elementId(), parts.elementType(), is_optional=optional))
    if kind.isMapType():
        parts = kind.asMapType()
        key = _named("key", parts.keyId(), parts.keyType(), is_optional=False)
        value = _named("value", parts.valueId(), parts.valueType(), is_optional=parts.isValueOptional())
        return pa.map_(key, value)
    return {
        "long": pa.int64(),
        "int": pa.int32(),
        "string": pa.string(),
        "binary": pa.binary(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamptz": pa.timestamp("us", "UTC"),
    }[str(kind)]


def described(jvm: Any, table: Any, written: Iterable[WrittenFile], place: str) -> list[Any]:
    """What Iceberg keeps of each file: its day, its size and the measures in its footer."""
    metrics_of = jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics
    config = jvm.org.apache.iceberg.MetricsConfig.forTable(table)
    partition = table.spec().fields()[0].name()
    found = []
    for path, day, size in written:
        location = f"{table.location()}/data/{path.removeprefix(place).lstrip('/')}"
        metrics = metrics_of(table.io().newInputFile(location), config)
        builder = jvm.org.apache.iceberg.DataFiles.builder(table.spec()).withPath(location)
        builder = builder.withFormat("PARQUET").withFileSizeInBytes(size).withMetrics(metrics)
        found.append(builder.withPartitionPath(f"{partition}={date_of(day)}").build())
    return found


def commit(
    jvm: Any,
    table: Any,
    files: Sequence[Any],
    where: Sequence[Between] | None,
    since: int,
    *,
    told: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Put the files in the place of those that hold the rows of these ranges, or of all; return the rows.

    The commit has the properties `told`.

    With the calls of Spark's writer (`SparkWrite.OverwriteByFilter` of Iceberg 1.12) at the isolation level
    `serializable`: another run that has written such rows `since` that snapshot stops it.
    """
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    condition = expressions.alwaysTrue() if where is None else expression(expressions, where)
    update = table.newOverwrite().overwriteByRowFilter(condition)
    update = update.validateFromSnapshot(since).validateNoConflictingDeletes().validateNoConflictingData()
    for name, value in (SIGNED | dict(told)).items():
        update = update.set(name, value)
    for file in files:
        update = update.addFile(file)
    update.commit()
    return sum(int(file.recordCount()) for file in files)
