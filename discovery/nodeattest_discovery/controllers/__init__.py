"""The bootstrap token controllers of a workload cluster: bootstrap-signer and token-cleaner."""
