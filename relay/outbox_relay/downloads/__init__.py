"""What is fetched once per machine: jars and wheels, checked against pinned hashes, kept in a cache."""
