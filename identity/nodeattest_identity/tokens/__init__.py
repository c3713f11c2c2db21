"""Tokens of service accounts and of our own: verified against an issuer's keys, and made."""
