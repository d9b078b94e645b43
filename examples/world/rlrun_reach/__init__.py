"""A world for rlrun: a point reaches a coloured target."""
