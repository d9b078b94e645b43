"""The embedded world: MuJoCo, an R1Pro-like robot, BDDL goals."""
