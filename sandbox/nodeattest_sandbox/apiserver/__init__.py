"""A loopback Kubernetes API server in memory, true to the rules that node registration depends on.

It keeps what the project needs of kube-apiserver and nothing else; docs/decisions.md says why.
"""
