"""Azure on loopback: metadata services, the authority that gives tokens, and the Resource Manager."""
