"""Files in the cache directory and for kubelet: private, written whole, one writer at a time."""
