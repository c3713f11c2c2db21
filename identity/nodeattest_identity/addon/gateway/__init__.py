"""The gateway: an aggregated API server that authenticates callers of in-cluster services (companion proposal 003)."""
