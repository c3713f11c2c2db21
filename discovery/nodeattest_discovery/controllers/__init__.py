"""The controller half: the bootstrap signer and the token cleaner of a workload cluster."""
