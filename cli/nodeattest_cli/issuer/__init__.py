"""``nodeattest issuer``: documents by which tokens of a cluster's service accounts are verified anywhere."""
