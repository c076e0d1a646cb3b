"""The driver's side: the files that tasks wrote, committed to an Iceberg table as Spark's own overwrite would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outbox_etl.arrow.task import Written, date_of

LIKE_OURS = ("write.parquet.", "write.format.", "write.data.", "write.object-storage.", "write.folder-storage.",
             "write.location-provider.", "write.target-file-size", "encryption.")  # fmt: skip
"""Properties of a table that decide what its files are and where they lie."""


def why_not(table: Any, day: str, properties: Mapping[str, str]) -> str:
    """Return what in an Iceberg table asks for Spark's own writer; empty: nothing does."""
    if not str(table.io().getClass().getName()).endswith(".HadoopFileIO"):
        return "the catalog has another way to files"
    spec = table.spec()
    fields = [(str(each.name()), str(each.transform())) for each in spec.fields()]
    if fields != [(f"{day}_day", "day")]:
        return "the table is partitioned in another way"
    if table.operations().current().formatVersion() != int(properties["format-version"]):
        return "the table has another format version"
    found = {str(name): str(value) for name, value in dict(table.properties()).items()}
    names = {name for name in {**found, **properties} if name.startswith(LIKE_OURS)}
    other = sorted(name for name in names if found.get(name) != properties.get(name))
    return f"the table's property {other[0]} is not the job's" if other else ""


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
        "timestamptz": pa.timestamp("us", "UTC"),
    }[str(kind)]


def files_of(jvm: Any, table: Any, written: Sequence[Written], place: str) -> list[Any]:
    """What Iceberg keeps of each file: its day, its size and the measures in its footer."""
    metrics_of = jvm.org.apache.iceberg.parquet.ParquetUtil.fileMetrics
    config = jvm.org.apache.iceberg.MetricsConfig.forTable(table)
    partition = table.spec().fields()[0].name()
    found = []
    for path, day, size in (file for files, _ in written for file in files):
        location = f"{table.location()}/data/{path.removeprefix(place).lstrip('/')}"
        metrics = metrics_of(table.io().newInputFile(location), config)
        builder = jvm.org.apache.iceberg.DataFiles.builder(table.spec()).withPath(location)
        builder = builder.withFormat("PARQUET").withFileSizeInBytes(size).withMetrics(metrics)
        found.append(builder.withPartitionPath(f"{partition}={date_of(day)}").build())
    return found


def commit(jvm: Any, table: Any, files: Sequence[Any], span: tuple[str, int, int], since: int) -> int:
    """Put the files in the place of those that hold the ids of `span`; return the rows.

    With the calls of Spark's writer (`SparkWrite.OverwriteByFilter` of Iceberg 1.12) at the isolation level
    `serializable`: another run that has written such rows `since` that snapshot stops it.
    """
    column, lower, upper = span
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    both = getattr(expressions, "and")
    condition = both(expressions.greaterThanOrEqual(column, lower), expressions.lessThan(column, upper))
    update = table.newOverwrite().overwriteByRowFilter(condition)
    update = update.validateFromSnapshot(since).validateNoConflictingDeletes().validateNoConflictingData()
    for file in files:
        update = update.addFile(file)
    update.commit()
    return sum(int(file.recordCount()) for file in files)
