"""The wire of the BEHAVIOR evaluator: a policy server, and a client that evaluates any such server."""
