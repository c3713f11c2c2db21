"""Status of NodeAttestationPolicies; runs with ``attestation`` and with ``serving``."""
