"""Runs workers in one process or on Ray; the only package that imports ray."""
