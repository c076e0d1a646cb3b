"""Finds what became COMMITTED, by the difference of two snapshots."""
