"""Producer groups: how their half messages are asked about, read and changed by operators."""
