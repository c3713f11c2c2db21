"""Service-account issuer discovery and add-on authentication (companion proposals 002 and 003)."""
