"""Print the placement, environment and resource needs of all workers; start nothing."""

from __future__ import annotations

from rlrun.config.loader import entry_point
from rlrun.config.schema import RunConfig
from rlrun.system.errors import ExitStatus


@entry_point(
    "Print the plan of a run; starts nothing.",
    aliases={"inventory": "placement.inventory", "details": "plan.details"},
    resumes=True,
    reads_inputs=False,
)
def main(config: RunConfig) -> ExitStatus:
    """Plan for `placement.inventory`, else for the running cluster of `cluster.address`, else for this machine."""
    from rlrun.cluster.launch import Machines
    from rlrun.placement.budget import budget
    from rlrun.placement.choices import choose
    from rlrun.placement.plan_tables import PlanPage
    from rlrun.placement.planner import plan
    from rlrun.placement.this_machine import known_inventory
    from rlrun.placement.verdict import planned_fit

    if config.placement.inventory is not None:  # offline: no cluster is contacted
        machines, inventory = None, known_inventory(config)
    else:
        machines = Machines(config)
        inventory = machines.inventory
    try:
        config, choices = choose(config, inventory)
        planned = plan(config, inventory)
        sums = budget(config, planned, inventory)
    finally:
        if machines is not None:
            machines.close()
    PlanPage(config, planned, sums, inventory).show(planned_fit(config), choices)
    return ExitStatus.ok


if __name__ == "__main__":
    main()
