"""What crosses between node and controller: wire format, verdicts, and the providers' attestors and verifiers.

This room knows no kubelet and no Kubernetes API. Import the modules by name; importing this package has no effect.
"""

__version__ = "0.1.0"
