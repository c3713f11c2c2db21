"""Publishes an issuer's documents to a store: plan, conditional writes, check of the public URL."""
