"""The controller ``hardening``: blocks, removes and monitors the automatic approval by the in-tree signer."""
