"""Controller ``standing``: condition ``NodeAttested``, and what a policy's ``onFailure`` does to Nodes.

``severity``, ``conditions`` and ``decide`` decide without I/O; ``reconciler`` acts in one cluster, with
``attestation_patcher`` on MachineAttestations and ``node_actions`` on Nodes; ``controller`` receives CSR outcomes and
makes the reconciler of each cluster.
"""
