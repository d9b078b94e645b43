"""The run as it is done: the one place where values of its configuration change after they were composed.

Only a first update without room on its accelerator changes it once more, by `Controller.configure`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.config.sections import freeze
from rlrun.config.simulator_spec import simulator_spec
from rlrun.placement.fitting import Fitting, fit_run
from rlrun.placement.inventory import Inventory
from rlrun.placement.plan import ROLES
from rlrun.training.run_folder import new_folder


def final_run(
    config: RunConfig, inventory: Inventory, roles: Sequence[str] = ROLES, is_evaluation: bool = False
) -> Fitting:
    """Return the run on these machines, with the numbers that its plan chose and with its folder.

    is_evaluation: in the world in which the simulator evaluates. Raises RunError if it does not fit; then no folder is
    made.
    """
    if is_evaluation:
        config = dataclasses.replace(config, env=simulator_spec(config.env).evaluation.env(config.env))
        freeze(config)
    fitting = fit_run(config, inventory, roles)
    return fitting.with_config(with_run_folder(fitting.config))


def with_run_folder(config: RunConfig) -> RunConfig:
    """Return the configuration with an absolute `output_dir`: the given one, or runs/<name>/<time>, which is made."""
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(config.output_dir).absolute() if config.output_dir else new_folder(Path("runs") / config.name / now)
    located = dataclasses.replace(config, output_dir=str(folder))
    freeze(located)
    return located
