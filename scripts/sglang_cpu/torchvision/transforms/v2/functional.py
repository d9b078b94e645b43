"""Names only."""
