"""Evaluates and signs attested CertificateSigningRequests: controllers ``attestation`` and ``serving``."""
