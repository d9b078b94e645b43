"""The spec of a simulator: how it is made, and a part for each of its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlrun.config.registry import SIMULATORS, no_faults
from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sections import Section
from rlrun.config.simulator_process import ProcessSpec
from rlrun.system.errors import RunError

GRIPPER_OPEN_01 = "open_01"  # 1 open, 0 closed: vla-eval has no name for it
RAW = "raw"  # vla-eval's format of numbers without a declared meaning
WRIST = "wrist"  # vla-eval's name of the camera at a hand, whose picture a benchmark sends only if it is asked for


@dataclass(frozen=True)
class PlannedSpaces:
    """The sizes of a policy's inputs and actions, known before a simulator runs.

    Example: PlannedSpaces(num_images=3, num_proprio=61, num_actions=23).
    """

    num_images: int
    num_proprio: int
    num_actions: int
    cameras: tuple[str, ...] = ()  # num_images names; (): unknown before it runs
    control_hz: float | None = None  # control steps per second; None: unknown before it runs
    is_exact: bool = True  # False: upper bounds


@dataclass(frozen=True)
class WorldSpec:
    """What a simulator shows and takes, known before it runs. Read by the checks of the configuration and by policies.

    Example: WorldSpec(lambda env: PlannedSpaces(num_images=1, num_proprio=2, num_actions=2))
    """

    planned_spaces: Callable[[EnvConfig], PlannedSpaces]  # exact, or an upper bound if only a running env knows
    is_r1pro: bool = False  # its section, which extends rlrun.envs.r1pro_keys.R1ProConfig, describes the robot
    # (EnvConfig) -> whether `expert_action` works, so that demonstrations can be recorded
    has_expert: Callable[[EnvConfig], bool] = lambda env: False
    # (EnvConfig) -> control steps after which an episode ends as published or registered; None: unknown
    own_limit: Callable[[EnvConfig], int | None] = lambda env: None


@dataclass(frozen=True)
class SimulatorMemory:
    """Accelerator or host memory of one env worker. Example: SimulatorMemory(8_200_000_000, 500_000_000)."""

    first_env_bytes: int = 300_000_000  # the process, its scene and the first env
    further_env_bytes: int = 5_000_000  # each further env
    scene_bytes: int = 0  # each scene that envs share, where the first env does not include one
    num_kept_scenes: int = 0  # scenes that stay open beside those of the envs
    num_scenes: int = 1  # that episodes may begin in

    def of(self, num_envs: int, num_starts: int | None = None) -> int:
        """Return the bytes of a worker with `num_envs` envs.

        num_starts: different starts among them, fewer where envs of a group have the same; None: as many.
        """
        starts = num_envs if num_starts is None else num_starts
        scenes = min(starts + self.num_kept_scenes, self.num_scenes)
        return self.first_env_bytes + (num_envs - 1) * self.further_env_bytes + scenes * self.scene_bytes


@dataclass(frozen=True)
class SimulatorTime:
    """Seconds of one env worker on a core and an accelerator of its own, for the plan's estimate.

    Example: SimulatorTime(env_step_s=0.04, picture_s=0.01) steps its envs one after another, 25 control steps a second.
    """

    step_s: float = 0.0  # a control step, whatever the number of envs
    env_step_s: float = 0.0  # a control step, for each env
    picture_s: float = 0.0  # a camera's picture of each env at the end of a chunk

    def of_chunk(self, num_envs: int, num_steps: int, num_images: int) -> float:
        """Return the seconds of a chunk of `num_steps` control steps with `num_images` cameras an env."""
        return num_steps * (self.step_s + num_envs * self.env_step_s) + num_envs * num_images * self.picture_s


@dataclass(frozen=True)
class ResourceSpec:
    """What a simulator needs of a machine. Read by the planner and by the doctor.

    Example: ResourceSpec(memory=lambda env: SimulatorMemory(8_200_000_000, 500_000_000), needs_rt_cores=True)
    """

    memory: Callable[[EnvConfig], SimulatorMemory] = lambda env: SimulatorMemory()  # of an accelerator
    host_memory: Callable[[EnvConfig], SimulatorMemory] = lambda env: SimulatorMemory(500_000_000, 0)
    time: Callable[[EnvConfig], SimulatorTime | None] = lambda env: None  # for the plan's estimate; None: unknown
    needs_rt_cores: bool = False  # whether its accelerators need RT cores
    node_checks: str | None = None  # module:ATTRIBUTE of a rlrun.doctor.measure.SimulatorInspection


@dataclass(frozen=True)
class Splits:
    """Where the episodes of training, validation and test begin, for people, and what differs from a benchmark.

    A simulator gets a reset seed, and `rlrun.edges.starts.split_of` returns the split it belongs to.
    """

    train: str = "drawn by seeds 4294967296 and above, demonstrations by seeds below 2000000"
    validation: str = "drawn by seeds from 2000000 on"
    test: str = "drawn by seeds from 2147483648 on"
    trained_on_test: str = ""  # a sentence, if the configuration says that training begins from test starts
    deviations: tuple[str, ...] = ()  # from a benchmark's published protocol, a sentence each
    num_test: int | None = None  # different test starts, if these decide an episode; None: as many as seeds


def no_perturbations(env: EnvConfig) -> dict[str, EnvConfig]:
    """Return none: for a simulator without perturbed worlds."""
    return {}


def as_it_is(env: EnvConfig) -> EnvConfig:
    """Return the same: for a simulator that evaluates in the world that it trains in."""
    return env


@dataclass(frozen=True)
class EvaluationSpec:
    """What a success rate in a simulator says. Read by evaluations, by `rlrun certify` and by the console.

    Example: EvaluationSpec(splits=lambda env: Splits(test="instances 301-340"))
    """

    # (EnvConfig) -> what the success rate counts; "": the goal of the activity
    meaning_of_success: Callable[[EnvConfig], str] = lambda env: ""
    splits: Callable[[EnvConfig], Splits] = lambda env: Splits()  # where episodes begin
    # (EnvConfig, reset seed) -> name of an episode's task; "": its instruction is its name
    task: Callable[[EnvConfig, int], str] = lambda env, seed: ""
    listed_instances: Callable[[EnvConfig], list[int] | None] = lambda env: None  # instances to report evaluations by
    # (EnvConfig) -> changed worlds by name, in which `rlrun certify` tests a policy too
    perturbations: Callable[[EnvConfig], dict[str, EnvConfig]] = no_perturbations
    # and those that repeat a part of these, as one difficulty: they are tested by their names only, not by [all]
    parts_of_perturbations: Callable[[EnvConfig], dict[str, EnvConfig]] = no_perturbations
    env: Callable[[EnvConfig], EnvConfig] = as_it_is  # the env of `python -m rlrun.eval`


@dataclass(frozen=True)
class Component:
    """Consecutive numbers of an action. Example: Component("rotation", 3, "axis_angle")."""

    name: str
    size: int
    format: str  # of vla_eval.specs, or GRIPPER_OPEN_01


@dataclass(frozen=True)
class Conventions:
    """What a world's cameras and numbers are called in vla-eval's specs, so that they mean the same over its wire.

    Example: Conventions((Component("joints", 23, "joint_positions_r1pro"),), cameras={"zed_link": "head"})
    """

    actions: tuple[Component, ...] = ()  # of the whole robot, in order; (): numbers without a declared meaning
    state: str = RAW  # format of proprioception
    cameras: Mapping[str, str] = field(default_factory=dict)  # the simulator's names -> vla-eval's; others are equal
    # parameters of vla-eval's benchmark of this world, with the values at which both are the same world
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WireSpec:
    """What a simulator's pictures and numbers are called over a wire. Read by `rlrun serve` and by remote policies.

    Example: WireSpec(lambda env: Conventions(cameras={"zed_link": "head"}))
    """

    conventions: Callable[[EnvConfig], Conventions] = lambda env: Conventions()  # names and formats in vla-eval
    # (EnvConfig) -> keys other than their defaults, with their values, by which clients must form what they send
    unusual_keys: Callable[[EnvConfig], Mapping[str, Any]] = lambda env: {}


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
