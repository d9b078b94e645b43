"""Policy server for openpi's clients, BEHAVIOR's evaluator and vla-eval, and clients that evaluate other servers."""
