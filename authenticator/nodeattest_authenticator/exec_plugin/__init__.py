"""The client-go exec credential plugin that kubelet runs."""
