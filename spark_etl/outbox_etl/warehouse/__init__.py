"""The warehouse: its tables, kept as Iceberg or as Parquet, written and maintained."""
