"""What the library does, as plans without I/O: send, prepare, decide, cancel, topics, groups."""
