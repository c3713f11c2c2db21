"""The gateway: an aggregated API server that tells one service who its caller is (companion proposal 003)."""
