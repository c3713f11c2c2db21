"""Controller ``standing``: condition ``NodeAttested``, and what a policy's ``onFailure`` does to Nodes."""
