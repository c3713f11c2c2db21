"""Approves kubelet's own serving requests; the part ``kubelet: Approve`` of the ``serving`` controller."""
