"""Only for the attestor: the EC2 metadata service and signing with the instance's credentials."""
