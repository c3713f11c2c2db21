"""The ``gcp`` provider: Shielded VMs of Google Compute Engine, whose vTPMs speak the TPM protocol."""
