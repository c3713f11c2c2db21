"""The ``gcp`` provider: Shielded VMs of Google Compute Engine, whose vTPMs use the TPM protocol."""
