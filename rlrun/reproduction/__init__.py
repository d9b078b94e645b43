"""Reproduction of published numbers on LIBERO: conventions, the verdict, and the search for the one at fault."""
