"""Documents that the agent reads and writes: JSON, PEM, API objects, kubeconfig, ExecCredential."""
