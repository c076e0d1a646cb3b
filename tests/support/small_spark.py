"""A Spark for a handful of rows, where compiling costs more than it brings: as settings, and as options of the job."""

from __future__ import annotations

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
SMALL = (
    "--master=local[2]",
    "--driver-memory=1g",
    "--partitions=1",
    *(f"--spark={name}={value}" for name, value in QUICK.items()),
)
