"""`outbox etl` runs the warehouse job."""
