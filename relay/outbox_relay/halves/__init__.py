"""Half messages as operators meet them: listed, explained, asked about again, decided by hand."""
