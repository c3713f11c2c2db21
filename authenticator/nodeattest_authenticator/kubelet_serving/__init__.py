"""The certificate that kubelet serves, got by attestation like the client certificate."""
