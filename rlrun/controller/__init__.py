"""Commands the three roles, without importing Ray."""
