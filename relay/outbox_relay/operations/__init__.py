"""What operators read and do: messages, half messages, groups, topics, partitions, status and health."""
