"""The planner: from configuration and inventory to a plan, and the plan's budget; starts no worker."""
