"""The warehouse job: exports the outbox's whole history with Spark and proves it complete.

It imports nothing of the outbox's other packages, so a cluster needs this one only:

    spark-submit --jars iceberg-spark-runtime.jar,postgresql.jar outbox_etl/main.py run --warehouse …
"""
