"""Token-based discovery of a cluster (companion proposals 000 and 001)."""
