"""``python -m bench soak``: many nodes with short certificates, and everything that goes wrong meanwhile."""
