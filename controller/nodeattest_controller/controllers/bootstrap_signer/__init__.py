"""Controllers ``bootstrap-signer`` and ``token-cleaner``: runs the pair of nodeattest_discovery in every cluster."""
