"""Publishes signer names on InfraClusters; runs with ``attestation``."""
