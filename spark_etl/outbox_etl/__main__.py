"""Makes `python -m outbox_etl` the job."""

from outbox_etl.main import main

if __name__ == "__main__":
    raise SystemExit(main())
