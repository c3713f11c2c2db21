"""The controller ``bootstrap-signer``: keeps the signatures of cluster-info equal to the tokens that sign."""
