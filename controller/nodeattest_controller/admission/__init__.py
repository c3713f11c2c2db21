"""The mutating admission webhook of controller ``bootstrap-config``: review, decide, serve, and its certificates."""
