"""The ``composite`` provider: several proofs of one machine at once, each verified by its own provider."""
