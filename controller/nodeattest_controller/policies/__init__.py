"""What the controller says of policies, and of the signers that they let clusters use, where others look for it."""
