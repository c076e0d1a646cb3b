"""A Spark for a handful of rows, as options of the warehouse's job: compiling takes longer than what it speeds up."""

from __future__ import annotations

SMALL = (
    "--master=local[2]",
    "--driver-memory=1g",
    "--partitions=1",
    "--spark=spark.sql.shuffle.partitions=2",
    "--spark=spark.sql.codegen.wholeStage=false",
    "--spark=spark.sql.codegen.factoryMode=NO_CODEGEN",
    "--spark=spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
