"""A simulator in an interpreter and process of its own, behind the same VectorEnv interface."""
