"""Pure parts: Kubernetes objects as frozen facts, and the rules that judge them. No I/O."""
