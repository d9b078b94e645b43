"""What a simulator is, in one object beside its class: the only thing that the rest of rlrun knows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rlrun.config.environment import Setting, Variable
from rlrun.config.registry import SIMULATORS
from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sealing import Section
from rlrun.system.errors import RunError


@dataclass(frozen=True)
class PlannedSpaces:
    """What a policy will see and do, before a simulator runs.

    Example: PlannedSpaces(num_images=3, num_proprio=61, num_actions=23).
    """

    num_images: int
    num_proprio: int
    num_actions: int


@dataclass(frozen=True)
class DeviceMemory:
    """Accelerator memory of one env worker. Example: DeviceMemory(8_200_000_000, 500_000_000)."""

    first_env_bytes: int = 300_000_000  # process and scene
    further_env_bytes: int = 5_000_000  # each

    def of(self, num_envs: int) -> int:
        """Bytes of a worker with `num_envs` envs."""
        return self.first_env_bytes + (num_envs - 1) * self.further_env_bytes


def no_faults(config: RunConfig) -> Iterator[RunError]:
    """For a simulator that can do whatever can be configured."""
    return iter(())


def no_settings(accelerators: tuple[int, ...]) -> list[Setting]:
    """For a simulator that needs no environment variables."""
    return []


@dataclass(frozen=True)
class SimulatorSpec:
    """A simulator, without importing it. docs/extending.md builds one step by step.

    Example: SPEC = SimulatorSpec("my_world", make=make_my_world, planned_spaces=spaces_of, section=MyWorldConfig)
    """

    name: str  # of `env.simulator=…`, and of its section `env.<name>`
    make: Callable[..., Any]  # (EnvConfig, num_envs, progress) -> VectorEnv; imports the simulator itself
    planned_spaces: Callable[[EnvConfig], PlannedSpaces]  # exact, or an upper bound where only a running env knows
    section: type[Section] | None = None  # dataclass of its settings
    memory: DeviceMemory = DeviceMemory()
    needs_own_process: bool = False  # it takes over the process that it runs in
    needs_rt_cores: bool = False  # of its accelerators
    has_expert: bool = False  # `expert_action` works, so that demonstrations can be recorded
    has_shared_step: Callable[[EnvConfig], bool] = lambda env: False  # moves all running rows: no parts of them
    is_r1pro: bool = False  # the robot that env.controlled, env.cameras and env.proprio describe
    cameras: tuple[str, ...] | None = None  # those that env.cameras may name; None: the key is not read
    packages: tuple[str, ...] = ()  # whose versions decide on results
    checks: Callable[[RunConfig], Iterator[RunError]] = no_faults  # what it cannot do, before anything starts
    known_lines: tuple[Any, ...] = ()  # of its output: rlrun.pipe.output.KnownLine
    variables: tuple[Variable, ...] = ()  # that `environment` may set
    environment: Callable[[tuple[int, ...]], list[Setting]] = no_settings  # for a worker with these accelerators
    listed_instances: Callable[[EnvConfig], list[int] | None] = lambda env: None  # by which evaluations are reported
    node_checks: str | None = None  # module:ATTRIBUTE of a rlrun.doctor.simulator_inspection.SimulatorInspection

    def check(self, config: RunConfig) -> Iterator[RunError]:
        """Yield what this simulator cannot do."""
        yield from self.checks(config)


def num_cameras(env: EnvConfig) -> int:
    """Images that a policy gets of each env, before a simulator runs. Raises RunError for an unknown simulator."""
    return simulator_spec(env).planned_spaces(env).num_images


def simulator_spec(env: EnvConfig) -> SimulatorSpec:
    """The spec of `env.simulator`. Raises RunError if it is unknown, or cannot be imported."""
    spec = SIMULATORS.get(env.simulator)
    if not isinstance(spec, SimulatorSpec):
        raise RunError(
            f"'{env.simulator}' is no simulator.",
            key="env.simulator",
            value=env.simulator,
            cause=f"It is {spec!r}.",
            remedy="Name a rlrun.config.simulator_spec.SimulatorSpec; docs/extending.md.",
            row="simulator-spec",
        )
    return spec
