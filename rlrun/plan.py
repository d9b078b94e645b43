"""Print the placement, environment and resource needs of all workers; start nothing."""

from __future__ import annotations

from rlrun.config.loader import entry_point
from rlrun.config.program import OF_A_POLICY, OF_LEARNING
from rlrun.config.schema import PlannedProgram, RunConfig
from rlrun.system.errors import ExitStatus


@entry_point(
    "Print the plan of a run; starts nothing.",
    aliases={"inventory": "placement.inventory", "details": "plan.details", "program": "plan.program"},
    resumes=True,
    reads_inputs=False,
    reads=("plan", "cluster", "placement", "env", *OF_A_POLICY, *OF_LEARNING, "evaluation", "record", "python_path"),
)
def main(config: RunConfig) -> ExitStatus:
    """Plan for `placement.inventory`, else for the running cluster of `cluster.address`, else for this machine."""
    from rlrun.cluster.launch import Machines
    from rlrun.placement.fitting import fit_run
    from rlrun.placement.plan_tables import PlanPage
    from rlrun.placement.this_machine import known_inventory
    from rlrun.placement.verdict import planned_fit
    from rlrun.train_async import collecting_ahead

    if config.plan.program is PlannedProgram.train_async:
        config = collecting_ahead(config)
    if config.placement.inventory is not None:  # offline: no cluster is contacted
        machines = None
        inventory = known_inventory(config)
    else:
        machines = Machines(config)
        inventory = machines.inventory
    try:
        fitting = fit_run(config, inventory)
    finally:
        if machines is not None:
            machines.close()
    PlanPage(fitting, inventory).show(planned_fit(fitting.config))
    return ExitStatus.ok if fitting.budget.is_counted else ExitStatus.uncounted


if __name__ == "__main__":
    main()
