"""The table of all environment variables that rlrun sets, with the place of each decision and its reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rlrun.config.registry import REGISTRIES


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
