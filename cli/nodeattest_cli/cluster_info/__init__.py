"""``nodeattest cluster-info``: where a cluster is and whom to trust, published, signed and checked."""
