"""A quarter of an hour on one card: every part that only a GPU can prove, as rows of what is expected and seen."""
