"""Controller ``bootstrap-config``: the mutating admission webhook for kubeadm bootstrap configuration."""
