"""Starts Ray on a node, and ends it with everything that it started."""
