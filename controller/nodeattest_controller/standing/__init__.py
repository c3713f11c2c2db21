"""Where each machine stands: the condition ``NodeAttested``, and what a policy's ``onFailure`` does to Nodes.

``weights``, ``conditions`` and ``treatments`` decide without I/O; ``work`` acts in one cluster, by ``records`` on
ledgers and by ``nodes`` on Nodes; ``desk`` hears verdicts and opens clusters.
"""
