"""The ``challenge`` provider: ``attestor`` on the node, ``verifier`` in the controller."""
