"""The serving certificate: what kubelet shows to those who connect to it, got by attestation as the client's is."""
