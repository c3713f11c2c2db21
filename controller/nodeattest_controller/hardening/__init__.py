"""The controller ``hardening``: the in-tree signer's automatic approval, closed where a policy rules, and watched."""
