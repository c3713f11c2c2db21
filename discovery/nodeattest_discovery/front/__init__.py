"""The discovery front: authenticates by bootstrap token and signs its responses with it (proposal 000)."""
