"""What the controllers share: the cache of the management cluster, connected workload clusters, conditions."""
