"""``nodeattest policy simulate``: what a policy that is not applied yet would refuse at the next renewals."""
