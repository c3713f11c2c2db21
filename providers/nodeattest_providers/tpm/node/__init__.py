"""Only for the attestor: the TPM itself, through the TPM software stack."""
