"""Pure planner: config x inventory -> plan."""
