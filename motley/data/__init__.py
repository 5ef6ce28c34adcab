"""Data sets, partitions and the federated data that they make."""
