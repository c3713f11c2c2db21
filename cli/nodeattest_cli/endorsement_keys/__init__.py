"""``nodeattest endorsement-keys``: register the endorsement keys of machines' TPMs."""
