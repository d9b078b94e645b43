"""Specification of a simulator, and the environment variables that worker processes get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rlrun.config.registry import REGISTRIES, SIMULATORS
from rlrun.config.schema import EnvConfig, RunConfig
from rlrun.config.sections import Section
from rlrun.system.errors import RunError


class Decided(Enum):
    plan = "plan"  # decided by the planner, per worker
    node = "node"  # decided on the worker's node, just before its libraries are imported
    cluster = "cluster"  # decided by the process that starts or joins Ray


@dataclass(frozen=True)
class Variable:
    """One row of the table. Example: Variable("OMP_NUM_THREADS", ("actor", "rollout", "env"), Decided.plan, "…")."""

    name: str
    roles: tuple[str, ...]  # roles whose workers get it
    decided: Decided
    reason: str

    def to(self, value: object) -> Setting:
        """Return this variable with a value. Example: variable.to(0).value == "0"."""
        return Setting(self.name, str(value), self.reason)


@dataclass(frozen=True)
class Setting:
    """A variable with its value for one worker. Example: Setting("OMP_NUM_THREADS", "1", "BLAS and …")."""

    name: str
    value: str
    reason: str


ALL = ("actor", "rollout", "env")
LEARNERS = ("actor", "rollout")
FREEING_MS = 100  # Ray's default of 1 s leaves one step in the store when the next one arrives
NICENESS = "RAY_worker_niceness"  # added to that of Ray's own processes
MANY_NODES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: Ray's services listen on loopback
SENTINEL = "RLRUN_SENTINEL"  # host:port/token
EXACT_PINNING = "pinned_max_round_threshold_mb:1"  # of PYTORCH_ALLOC_CONF, from torch 2.13 on
ACTOR_ALLOCATOR = f"expandable_segments:True,{EXACT_PINNING}"

VARIABLES = (
    Variable("CUDA_VISIBLE_DEVICES", ALL, Decided.plan, "a worker sees its own accelerators only; empty: none"),
    Variable("CUDA_DEVICE_ORDER", ALL, Decided.plan, "PCI_BUS_ID: indices then mean the same as in nvidia-smi"),
    Variable(
        "PYTORCH_ALLOC_CONF",
        LEARNERS,
        Decided.plan,
        "expandable segments: batches of unequal length fragment; pinned memory as asked for: powers of two take 1.3 x",
    ),
    Variable("OMP_NUM_THREADS", ALL, Decided.plan, "thread pools else take every core for each worker"),
    Variable("TOKENIZERS_PARALLELISM", LEARNERS, Decided.plan, "its threads do not survive a fork, and it then warns"),
    Variable("TORCH_FR_BUFFER_SIZE", LEARNERS, Decided.plan, "flight recorder: the last collectives of every rank"),
    Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", LEARNERS, Decided.plan, "a collective past its deadline leaves its record"),
    Variable(
        "TORCH_FR_DUMP_TEMP_FILE", LEARNERS, Decided.node, "into the run folder: `flight_recorder/<worker>_<rank>`"
    ),
    Variable("GLOO_SOCKET_IFNAME", LEARNERS, Decided.node, "a host name may resolve to loopback; NICs differ by node"),
    Variable("NCCL_SOCKET_IFNAME", LEARNERS, Decided.node, "=NAME of the same one; without =, eth1 means eth10 too"),
    Variable(
        "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK",
        ("rollout",),
        Decided.node,
        "SGLang from 0.5.7: off where other workers sit on some GPUs of its group only",
    ),
    Variable(
        "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK",
        ("rollout",),
        Decided.node,
        "SGLang before 0.5.7 reads it; later ones switch the check on because of it, so it is removed",
    ),
    Variable(
        "SGLANG_DISABLE_TP_MEMORY_INBALANCE_CHECK",
        ("rollout",),
        Decided.node,
        "an alias in few versions: removed",
    ),
    Variable(
        "SGLANG_EXTERNAL_MODEL_PACKAGE",
        ("rollout",),
        Decided.node,
        "SGLang then imports none of its own 200 models, which takes half of its start",
    ),
    Variable("SGLANG_PLATFORM", ("rollout",), Decided.node, "without an accelerator: rlrun's CPU platform"),
    Variable(SENTINEL, (), Decided.cluster, "the address of the node's sentinel, for its workers"),
    Variable(
        "RAY_AUTH_MODE",
        (),
        Decided.cluster,
        "token: else any peer that reaches Ray's ports runs code on the node",
    ),
    Variable("RAY_AUTH_TOKEN", (), Decided.cluster, "made for the run, or found; in the environment only"),
    Variable(MANY_NODES, (), Decided.cluster, "0 for a Ray of one node, whose services then listen on loopback"),
    Variable("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", (), Decided.cluster, "Ray else unsets the devices of the plan"),
    Variable(
        "RAY_DISABLE_FAILURE_SIGNAL_HANDLER",
        (),
        Decided.cluster,
        "Ray's handler would end the driver at a SIGTERM, before it has saved",
    ),
    Variable(
        "RAY_IGNORE_UNHANDLED_ERRORS",
        (),
        Decided.cluster,
        "Ray else repeats failures that rlrun reported",
    ),
    Variable(
        "RAY_free_objects_period_milliseconds", (), Decided.cluster, "a step's trajectories go before others come"
    ),
    Variable("RAY_event_stats", (), Decided.cluster, "Ray's idle processes then take less of a core"),
    Variable("RAY_task_events_report_interval_ms", (), Decided.cluster, "Ray's own list of tasks is not used"),
    Variable(NICENESS, (), Decided.cluster, "at Ray's own 15, a busy neighbour leaves workers 5 % of a core"),
    Variable("RAY_health_check_initial_delay_ms", (), Decided.cluster, "the head asks nodes from the start"),
    Variable("RAY_health_check_period_ms", (), Decided.cluster, "a cut cable else goes unseen for 65 s"),
    Variable("RAY_health_check_timeout_ms", (), Decided.cluster, "how long a node has for its answer"),
    Variable("RAY_health_check_failure_threshold", (), Decided.cluster, "from node.lost_after_s"),
)
_BY_NAME = {variable.name: variable for variable in VARIABLES}


def variables() -> tuple[Variable, ...]:
    """Return the table with the rows of installed kinds."""
    kinds = [spec for registry in REGISTRIES for spec in registry.installed()]
    return tuple(dict.fromkeys([*VARIABLES, *(one for spec in kinds for one in getattr(spec, "variables", ()))]))


def setting(name: str, value: object) -> Setting:
    """Return a row of the table with a value. Raises KeyError for a variable that the table lacks."""
    return _BY_NAME[name].to(value)


def markdown_table() -> str:
    """Return the table for the documentation."""
    rows = [f"| `{v.name}` | {', '.join(v.roles) or 'all'} | {v.decided.value} | {v.reason} |" for v in variables()]
    return "\n".join(["| variable | workers | decided by | why |", "|---|---|---|---|", *rows])


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
class DeviceMemory:
    """Accelerator memory of one env worker. Example: DeviceMemory(8_200_000_000, 500_000_000)."""

    first_env_bytes: int = 300_000_000  # the process, its scene and the first env
    further_env_bytes: int = 5_000_000  # each further env

    def of(self, num_envs: int) -> int:
        """Return the bytes of a worker with `num_envs` envs."""
        return self.first_env_bytes + (num_envs - 1) * self.further_env_bytes


def no_faults(config: RunConfig) -> Iterator[RunError]:
    """Yield no faults: the check of a simulator without further conditions."""
    return iter(())


def no_log(process_group: int) -> list[str]:
    """Return no lines: for a simulator that prints everything."""
    return []


def as_it_is(env: EnvConfig) -> EnvConfig:
    """Return the same: for a simulator that evaluates in the world that it trains in."""
    return env


def no_settings(accelerators: tuple[int, ...], num_cores: int) -> list[Setting]:
    """Return no settings: for a simulator that needs no environment variables."""
    return []


@dataclass(frozen=True)
class SimulatorSpec:
    """The spec of a simulator, which does not import it. docs/extending.md builds one step by step.

    Example: SPEC = SimulatorSpec("my_world", make=make_my_world, planned_spaces=spaces_of, section=MyWorldConfig)
    """

    name: str  # name in `env.simulator=…`, and of its section `env.<name>`
    make: Callable[..., Any]  # (EnvConfig, num_envs, progress) -> VectorEnv; imports the simulator itself
    planned_spaces: Callable[[EnvConfig], PlannedSpaces]  # exact, or an upper bound if only a running env knows
    section: type[Section] | None = None  # dataclass of its settings
    memory: DeviceMemory = DeviceMemory()
    needs_own_process: bool = False  # it takes over the process that it runs in
    has_own_python: bool = False  # it is installed under a Python of its own, not under rlrun's
    needs_rt_cores: bool = False  # whether its accelerators need RT cores
    # (EnvConfig) -> whether `expert_action` works, so that demonstrations can be recorded
    has_expert: Callable[[EnvConfig], bool] = lambda env: False
    # (EnvConfig) -> what the success rate counts; "": the goal of the activity
    meaning_of_success: Callable[[EnvConfig], str] = lambda env: ""
    is_r1pro: bool = False  # env.controlled, env.cameras and env.proprio describe its robot
    cameras: tuple[str, ...] | None = None  # names for env.cameras; None: the key is not read
    image_names: Callable[[EnvConfig], list[str] | None] = lambda env: None  # of images that `cameras` does not name
    packages: tuple[str, ...] = ()  # packages whose versions affect results
    checks: Callable[[RunConfig], Iterator[RunError]] = no_faults  # yields faults, before anything starts
    known_lines: tuple[Any, ...] = ()  # rlrun.pipe.output.KnownLine, for lines of its output
    variables: tuple[Variable, ...] = ()  # variables that `environment` may set
    # for a worker with these accelerators and its share of the node's cores
    environment: Callable[[tuple[int, ...], int], list[Setting]] = no_settings
    listed_instances: Callable[[EnvConfig], list[int] | None] = lambda env: None  # instances to report evaluations by
    for_evaluation: Callable[[EnvConfig], EnvConfig] = as_it_is  # the env of `python -m rlrun.eval`
    failure_log: Callable[[int], list[str]] = no_log  # (process group) -> lines of a log file, after a failed start
    node_checks: str | None = None  # module:ATTRIBUTE of a rlrun.doctor.measure.SimulatorInspection

    def check(self, config: RunConfig) -> Iterator[RunError]:
        """Yield the faults of a configuration with this simulator."""
        yield from self.checks(config)


def num_cameras(env: EnvConfig) -> int:
    """Return the number of images per env, before a simulator runs. Raises RunError for an unknown simulator."""
    return simulator_spec(env).planned_spaces(env).num_images


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
