"""The planner: a pure function from configuration and inventory to a plan, and the plan's budget."""
