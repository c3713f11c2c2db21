"""Pure values, parsed from Kubernetes objects, and the rules about them. No I/O."""
