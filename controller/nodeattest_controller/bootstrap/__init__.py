"""Bootstrap configuration of Cluster API's kubeadm provider, rendered so that its nodes join attested."""
