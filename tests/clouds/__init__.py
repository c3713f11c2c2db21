"""Clouds on loopback: metadata services, platform APIs and their authorities, each a package of its own."""
