"""``nodeattest issuer serve``: serves the documents of one issuer, or of all clusters, over HTTPS to anyone."""
