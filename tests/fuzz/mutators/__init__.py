"""Mutations that know a format, so that the fuzzer gets past base64, lengths and signatures."""
