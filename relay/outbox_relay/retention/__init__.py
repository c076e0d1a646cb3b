"""Retention: which partitions of the history may go, and dropping them while others write."""
