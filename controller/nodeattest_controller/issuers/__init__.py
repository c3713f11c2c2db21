"""The controller ``issuer``: the keys of each workload cluster's API server, published where anybody can read them."""
