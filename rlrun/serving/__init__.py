"""Policy server for openpi's clients and the BEHAVIOR evaluator, and a client that evaluates any such server."""
