"""The APIs of AWS: STS names the identity that signed, EC2 describes instances."""
