"""New messages as Arrow: tasks read PostgreSQL's COPY and write Parquet, the driver commits their files to Iceberg."""
