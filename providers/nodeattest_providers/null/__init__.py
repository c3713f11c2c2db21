"""The ``null`` provider: ``attestor`` on the node, ``verifier`` in the controller."""
