"""Controller ``token-cleaner``: runs in ``bootstrap_signer.controller``, with which it shares an informer."""
