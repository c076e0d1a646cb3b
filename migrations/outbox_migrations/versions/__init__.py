"""The migrations, one module per revision; their SQL is in ../sql."""
