"""History: which partitions may go, and letting them go without holding up anybody."""
