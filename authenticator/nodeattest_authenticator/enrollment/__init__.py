"""From a key to a certificate: evidence, requests, challenge, version of the evidence, checks of the result."""
