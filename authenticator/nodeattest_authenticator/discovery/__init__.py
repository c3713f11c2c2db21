"""A cluster that was discovered: how join finds it, what kubelet gets of it, how a node keeps in touch with it."""
