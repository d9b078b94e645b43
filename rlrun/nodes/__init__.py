"""Ray on a node: its settings, its start and supervision, and the end of all its processes."""
