"""The management cluster's caches, and the connection to one workload cluster."""
