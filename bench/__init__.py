"""Benchmarks: what reproduces every number in the README, with the peers and limits of the same run."""
