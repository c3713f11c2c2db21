"""What a service-account issuer publishes: keys, URLs and documents, as kube-apiserver writes them. Pure."""
