"""The spec of a simulator: how it is made, and a part for each of its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rlrun.config.registry import SIMULATORS, no_faults
from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sections import Section
from rlrun.config.simulator_evaluation import EvaluationSpec
from rlrun.config.simulator_process import ProcessSpec
from rlrun.config.simulator_resources import ResourceSpec
from rlrun.config.simulator_wire import WireSpec
from rlrun.config.simulator_world import WorldSpec
from rlrun.system.errors import RunError


@dataclass(frozen=True)
class SimulatorSpec:
    """The spec of a simulator, which does not import it. docs/extending.md builds one step by step.

    Example: SPEC = SimulatorSpec("my_world", "my_package.world:MyWorld", WorldSpec(planned_spaces), MyConfig)
    """

    name: str  # name in `env.simulator=…`, and of its section `env.<name>`
    make: str | Callable[..., Any]  # (EnvConfig, num_envs, progress) -> VectorEnv, or its module:NAME, imported then
    world: WorldSpec  # for the checks of the configuration and policies
    section: type[Section] | None = None  # dataclass of its settings
    checks: Callable[[RunConfig], Iterator[RunError]] = no_faults  # yields faults, before anything starts
    resources: ResourceSpec = field(default_factory=ResourceSpec)  # for the planner and the doctor
    process: ProcessSpec = field(default_factory=ProcessSpec)  # for whoever starts it
    evaluation: EvaluationSpec = field(default_factory=EvaluationSpec)  # for evaluations and certificates
    wire: WireSpec = field(default_factory=WireSpec)  # for evaluators and policies elsewhere

    def check(self, config: RunConfig) -> Iterator[RunError]:
        """Yield the faults of a configuration with this simulator."""
        yield from self.checks(config)


def num_simulators(config: RunConfig) -> int:
    """Return the number of simulators of an env worker: one more for evaluations while carried episodes stand."""
    is_evaluated_between = config.evaluation.every_steps > 0 or config.logging.video_every_steps > 0
    return 2 if config.algorithm.carry_episodes and is_evaluated_between else 1


def num_cameras(env: EnvConfig) -> int:
    """Return the number of images per env, before a simulator runs. Raises RunError for an unknown simulator."""
    return simulator_spec(env).world.planned_spaces(env).num_images


def simulator_spec(env: EnvConfig) -> SimulatorSpec:
    """Return the spec of `env.simulator`. Raises RunError if it is unknown, or cannot be imported."""
    spec = SIMULATORS.get(env.simulator)
    if not isinstance(spec, SimulatorSpec):
        raise RunError(
            f"'{env.simulator}' is no simulator.",
            key="env.simulator",
            value=env.simulator,
            cause=f"It is {spec!r}.",
            remedy="Name a rlrun.config.simulator_spec.SimulatorSpec; docs/extending.md.",
        )
    return spec
