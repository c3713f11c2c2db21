"""Keeping an issuer's documents in a public place: stores, publication, read-back and rotation of keys."""
