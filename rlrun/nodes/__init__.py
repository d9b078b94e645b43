"""Starts Ray on a node, and ends it with all its processes."""
