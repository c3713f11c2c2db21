"""Serving HTTPS, for every program of ours that listens: addresses, certificates, bounded connections, health."""
