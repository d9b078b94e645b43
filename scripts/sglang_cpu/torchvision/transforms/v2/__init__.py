"""Names only: the functions of the second generation."""
