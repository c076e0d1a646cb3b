"""`outbox prove`: a workload with faults on a deployment, and the check of what came of it against what was sent."""
