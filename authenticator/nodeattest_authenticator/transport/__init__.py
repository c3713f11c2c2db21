"""Requests of the node to its API server: one bounded client, the choice of a server, retries."""
