"""Compares the data set and the policy folder of a run with its world before anything runs, for plan and doctor.

Only what is on this machine can be compared, and only what is known of a world that does not run.
"""

from __future__ import annotations

from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.data.fit import Demonstrated, Fit, World, compare
from rlrun.data.lerobot.reader import demonstrated
from rlrun.data.messages import PolicySpaces
from rlrun.policies.spec import policy_spec
from rlrun.system.errors import RunError


def planned_fit(config: RunConfig) -> Fit | None:
    """Return the comparison; None: the run brings neither, or they are not on this machine."""
    spec, data, policy = policy_spec(config), None, None
    given, demos = config.policy.path, config.demos.path
    if given is not None and Path(given).is_dir():
        policy = PolicySpaces(0, 0, tuple(spec.cameras(Path(given))))
    elif given is None and demos is not None and spec.needs_demonstrations and Path(demos).is_dir():
        try:
            data = demonstrated(config.demos, demos)
        except RunError as error:
            return Fit(refusals=[error])
        policy = _of_new(config, data)
    if policy is None:
        return None
    return compare(data, _world(config), policy, config.policy.cameras if data is None else {})


def _of_new(config: RunConfig, data: Demonstrated) -> PolicySpaces:
    return PolicySpaces(data.num_actions, data.num_proprio if config.policy.use_proprio else 0, _world(config).cameras)


def _world(config: RunConfig) -> World:
    planned = simulator_spec(config.env).planned_spaces(config.env)
    if not planned.is_exact:
        return World(planned.cameras, None, None, None, image_size=config.env.image_size)
    sizes = planned.num_images, planned.num_proprio, planned.num_actions
    return World(planned.cameras, *sizes, control_hz=planned.control_hz, image_size=config.env.image_size)
