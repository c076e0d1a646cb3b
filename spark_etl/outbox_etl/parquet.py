"""The warehouse as plain Parquet files, committed by a manifest."""

from __future__ import annotations
