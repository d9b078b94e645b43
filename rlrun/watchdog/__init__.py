"""Detects a stalled run, names the worker that causes it, and collects evidence; imports neither ray nor torch."""
