"""Strict parsers for untrusted text: JSON, YAML, base64, JWTs, durations and times. No other room is imported here."""
