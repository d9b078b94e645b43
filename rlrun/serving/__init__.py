"""The BEHAVIOR evaluator's protocol: a policy server, and a client for evaluating any such server."""
