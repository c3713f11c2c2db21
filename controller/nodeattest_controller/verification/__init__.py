"""The verifiers of the providers: one instance each, and how their verifications are run."""
