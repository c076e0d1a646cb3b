"""The migrations of the app, one for each revision of the schema."""
