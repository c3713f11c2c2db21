"""Half of the ``tpm`` provider."""
