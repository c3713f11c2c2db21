"""``nodeattest token``: bootstrap tokens, as ``kubeadm token`` manages them."""
