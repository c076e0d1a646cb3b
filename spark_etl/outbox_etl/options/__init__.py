"""The options of a run: defined once, read from the command line and the environment, checked before Spark starts."""
