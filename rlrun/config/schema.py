"""Every key of a run, with its type and default: the only place where a default is written.

YAML files under `configs/` state differences from these. Sizes are counts unless the name ends in
`_s` (seconds), `_bytes`, `_hz`. None means "decided by rlrun", and the comment says how.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rlrun.config.python_path import put_on_path
from rlrun.config.sealing import OpenSection, Section


class ProprioLayout(Enum):
    full_256 = "full_256"  # OmniGibson's R1Pro vector of 2025
    local_61 = "local_61"  # without global pose, as the 2026 track demands


class RewardMode(Enum):
    potential = "potential"  # r_potential * change of the fraction of satisfied goal literals
    dense = "dense"  # the potential plus shaping towards the next literal


class Renderer(Enum):
    auto = "auto"  # EGL, else OSMesa, else ray casting
    egl = "egl"
    osmesa = "osmesa"
    raycast = "raycast"


@dataclass
class EnvConfig(OpenSection):
    """What all simulators share; the settings of one kind are `env.<kind>`, beside its class."""

    simulator: str = "embedded"  # an installed one, or module:ATTRIBUTE of its spec; docs/extending.md
    activity: str = "turning_on_radio"  # bddl activity
    num_workers: int = 2
    num_envs: int = 16  # over all workers
    max_control_steps: int = 60  # time limit of an episode
    action_hz: int = 30
    physics_hz: int = 120
    controlled: list[str] = field(default_factory=lambda: ["arm_right", "gripper_right"])
    cameras: list[str] = field(default_factory=lambda: ["zed_link"])
    image_size: int = 64  # frames are square
    proprio: ProprioLayout = ProprioLayout.local_61
    reward: RewardMode = RewardMode.dense
    reward_potential: float = 1.0  # r_potential
    max_abs_reward: float | None = (
        1e6  # of a control step; more is an infra fault, as is ten times what a world declares
    )
    renderer: Renderer = Renderer.auto
    restart_limit: int = 8  # simulator restarts per worker and run before the run gives up
    own_process: bool | None = None  # of each simulator; None: where it needs one, or the plan names its interpreter
    load_deadline_s: float = 600.0  # own process: longest silence while it loads, before it is killed
    call_deadline_s: float = 300.0  # own process: longest time for a reset, a chunk or a picture


class AttentionKernel(Enum):
    """How every token of a row sees every other; tokens of other rows and padding are never seen."""

    flash = "flash"  # the package flash-attn: CUDA and bf16; packed rows are one call
    sdpa = "sdpa"  # torch's own, which has a FlashAttention kernel as well
    eager = "eager"  # as it is written in papers; slow, and holds a weight for every pair of tokens


class CompileBackend(Enum):
    """Of torch.compile."""

    inductor = "inductor"  # fused kernels: Triton on a GPU, C++ on a CPU; needs a C++ compiler on the node
    aot_eager = "aot_eager"  # traces and runs torch's own kernels: no faster, for finding out what does not compile


@dataclass
class PolicyConfig(OpenSection):
    """What every kind of policy reads; what one kind reads is the section of its name."""

    kind: str = "openvla_oft"  # one of the installed kinds, whose own keys are the section of its name, or module:SPEC
    path: str | None = None  # folder with a checkpoint; None: a new policy, warm-started if its kind needs it
    num_action_chunks: int = 4  # C
    use_proprio: bool = True
    value_hidden_sizes: list[int] = field(default_factory=lambda: [128, 64])  # of the critic
    attention: AttentionKernel | None = None  # in actor and HF rollout; None: flash if installed and possible, or sdpa
    compile_backend: CompileBackend | None = None  # torch.compile in actor and HF rollout workers; None: not compiled


class RolloutBackendKind(Enum):
    hf = "hf"
    sglang = "sglang"


class Precision(Enum):
    fp32 = "fp32"
    bf16 = "bf16"


class AttentionBackend(Enum):
    """Those of SGLang that let every token see every other."""

    flashinfer = "flashinfer"
    fa3 = "fa3"
    fa4 = "fa4"
    triton = "triton"
    torch_native = "torch_native"
    intel_amx = "intel_amx"


class SglangMode(Enum):
    engine = "engine"  # SGLang's Engine in a process that the rollout worker owns
    http = "http"  # SGLang's own server, on a port of the loopback interface


@dataclass
class SglangConfig(Section):
    """For rollout.backend=sglang; docs/sglang.md tells how to install it."""

    python: str | None = None  # interpreter that has SGLang, on the rollout workers' nodes; None: that of rlrun
    mode: SglangMode = SglangMode.engine
    attention_backend: AttentionBackend | None = None  # None: SGLang's choice, or torch_native on a CPU
    mem_fraction_static: float | None = None  # of device memory, for weights and key-value pool; None: SGLang's choice
    server_args: dict[str, Any] = field(default_factory=dict)  # of SGLang's ServerArgs, over rlrun's own


@dataclass
class RolloutConfig(Section):
    backend: RolloutBackendKind = RolloutBackendKind.hf
    num_workers: int = 2
    precision: Precision = Precision.fp32
    temperature: float = 1.0  # of sampling in training; evaluation has its own
    num_threads: int = 1
    pipeline_stages: int = 2  # groups of rows: env workers, or parts of each; one is answered, the others simulate
    sglang: SglangConfig = field(default_factory=SglangConfig)


class ShardingStrategy(Enum):
    full_shard = "full_shard"
    shard_grad_op = "shard_grad_op"
    hybrid_shard = "hybrid_shard"
    no_shard = "no_shard"


class OptimizerKind(Enum):
    adamw = "adamw"  # moments in actor.optimizer_precision; one fused pass
    adamw_8bit = "adamw_8bit"  # moments of large tensors in 8 bits; needs rlrun[bitsandbytes]


class RewardType(Enum):
    chunk = "chunk"  # gamma per chunk step
    action = "action"  # gamma per control step


class RatioLevel(Enum):
    token = "token"
    action = "action"
    chunk = "chunk"


class Aggregation(Enum):
    token_mean = "token-mean"
    seq_mean_token_sum = "seq-mean-token-sum"
    seq_mean_token_mean = "seq-mean-token-mean"


class KlKind(Enum):
    k1 = "k1"
    k2 = "k2"
    k3 = "k3"
    abs = "abs"
    mse = "mse"
    low_var_kl = "low_var_kl"


@dataclass
class AlgorithmConfig(OpenSection):
    """What all algorithms share."""

    name: str = "ppo"  # one of the installed ones, whose own keys are the section of its name, or module:SPEC
    horizon: int = 16  # T, chunk steps per env and rollout epoch
    rollout_epochs: int = 1  # per training step
    carry_episodes: bool = False  # go on with running episodes in the next rollout epoch; False: start afresh
    gamma: float = 0.99
    reward_type: RewardType = RewardType.chunk
    update_epochs: int = 2
    global_batch_size: int = 256  # chunk steps per optimizer step, over all ranks
    ratio_level: RatioLevel = RatioLevel.token
    aggregation: Aggregation = Aggregation.token_mean
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.28
    clip_ratio_c: float = 3.0  # dual clip; for negative advantages
    behavior_weight_cap: float | None = 2.0  # decoupled PPO, of old batches only: bound of start / acted; None: plain
    entropy_coef: float = 0.0
    kl_coef: float = 0.0  # penalty towards the policy at the start of the run; 0: no reference copy is kept
    kl_kind: KlKind = KlKind.low_var_kl
    target_kl: float | None = 0.05  # stop the update when the k3 estimate of the KL exceeds it; None: never


@dataclass
class LoraConfig(Section):
    """Low-rank adapters: few weights train, so that gradients and optimizer state are small, and little is sent."""

    rank: int = 0  # 0: no adapters, all weights train
    alpha: float = 16.0  # what the adapter adds is scaled by alpha / rank
    targets: list[str] = field(default_factory=lambda: ["language_model", "vision_backbone"])  # their linear layers
    trained_whole: list[str] = field(
        default_factory=lambda: ["value_head", "projector", "proprio_projector", "action_queries"]
    )
    is_sent_merged: bool = True  # False: HF rollout workers have adapters of their own, and only what trains is sent

    @property
    def is_sent_apart(self) -> bool:
        """Whether rollout workers compute with adapters beside the weights of the first policy."""
        return self.rank > 0 and not self.is_sent_merged


@dataclass
class ActorConfig(Section):
    num_workers: int = 2  # FSDP ranks
    sharding: ShardingStrategy = ShardingStrategy.full_shard
    fsdp_size: int | None = None  # hybrid_shard: ranks per shard group; None: ranks per node
    param_precision: Precision = Precision.fp32
    reduce_precision: Precision = Precision.fp32
    optimizer_precision: Precision = Precision.fp32  # master weights, and optimizer state where it has not 8 bits
    micro_batch_size: int = 64  # chunk steps per rank and forward pass
    activation_checkpointing: bool = False
    cpu_offload: bool = False  # parameters, gradients and optimizer state between uses
    lora: LoraConfig = field(default_factory=LoraConfig)
    optimizer: OptimizerKind = OptimizerKind.adamw
    lr: float = 3e-4
    value_lr: float = 1e-3
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    weight_decay: float = 0.0
    lr_warmup_steps: int = 0  # optimizer steps
    clip_grad_norm: float = 1.0
    num_threads: int = 1


class WeightTransport(Enum):
    object_store = "object_store"
    collective = "collective"


@dataclass
class WeightSyncConfig(Section):
    transport: WeightTransport = WeightTransport.object_store
    bucket_bytes: int = 64 * 1024 * 1024  # the next one is packed while the last one travels
    is_checksum_verified: bool = False


@dataclass
class DemosConfig(Section):
    path: str | None = None  # dataset folder; None: made by the expert and cached
    num_episodes: int = 128
    noise: float = 0.01  # std of the disturbance of expert targets while recording, share of the action range
    seed: int = 1_000_000  # first reset seed


@dataclass
class SftConfig(Section):
    num_steps: int = 300  # optimizer steps
    batch_size: int = 64  # chunk steps over all ranks
    lr: float = 1e-3
    lr_warmup_steps: int = 20
    label_smoothing_bins: float = 0.0  # std, in bins, of the target distribution around the demonstrated bin


@dataclass
class EvaluationConfig(Section):
    every_steps: int = 0  # 0: only before the first and after the last step
    num_episodes: int = 64
    temperature: float = 1.0  # of sampling, as in training; 0: arg-max
    seed: int = 2_000_000  # first reset seed; episode i takes seed + i
    checkpoint: str | None = None  # for rlrun.eval, rlrun.serve: run, checkpoint or exported policy folder
    server: str | None = None  # for rlrun.eval: ws://host:port of a policy server, in place of a checkpoint


@dataclass
class ServeConfig(Section):
    """For rlrun.serve: a policy on the wire of the BEHAVIOR evaluator."""

    host: str = "127.0.0.1"  # whoever reaches it may use it: the wire knows no passwords
    port: int = 8000  # 0: any free one
    instruction: str | None = None  # what the policy is told; None: the sentence of env.activity
    replan_steps: int | None = None  # control steps per forward pass, for clients that ask singly; None: a whole chunk
    max_clients: int = 64
    max_message_bytes: int = 64 * 1024 * 1024  # an observation of three cameras with depth has 8 MB
    idle_timeout_s: float = 1800.0  # a client that asks nothing for so long is let go; scenes take minutes to load
    ping_s: float = 60.0  # how often a client's machine is asked for a sign of life, and how long it has for it


@dataclass
class CheckpointConfig(Section):
    every_steps: int = 10
    keep_last: int = 2
    is_best_kept: bool = True
    resume: str | None = "auto"  # "auto": newest whole one of this run folder; a path; None: start afresh
    verify: bool = True  # compare the checksums of checkpoints and policies before use; False: only names and sizes


class Verbosity(Enum):
    quiet = "quiet"
    normal = "normal"
    debug = "debug"


@dataclass
class LoggingConfig(Section):
    verbosity: Verbosity = Verbosity.normal  # quiet: results and warnings; debug: every metric, debug lines in logs
    tensorboard: bool = True  # event files in the run folder
    wandb: bool = False  # offline unless WANDB_API_KEY is set
    wandb_project: str = "rlrun"
    video_every_steps: int = 0  # 0: only with the first and last evaluation
    video_episodes: int = 4  # tiles of a video
    profile_steps: list[int] = field(default_factory=list)  # training steps traced with torch.profiler


@dataclass
class RecordConfig(Section):
    """What crosses the edges between the roles, kept in recording/ of the run folder, so that one half of the run can
    be done again without the other: rlrun.train replay=RUN_FOLDER."""

    num_steps: int = 0  # training steps; 0: nothing is recorded
    first_step: int = 0  # steps count from 0
    edges: list[str] = field(default_factory=lambda: ["observation", "actions", "trajectory", "weights"])
    max_bytes: int = 4 * 1024**3  # env workers and actor have equal shares; who has used up his stops to record


class ReplayHalf(Enum):
    actor = "actor"  # updates, from the recorded trajectories; no simulator, no rollout worker
    env = "env"  # simulation, with the recorded actions; no policy


@dataclass
class ReplayConfig(Section):
    path: str | None = None  # folder of a recorded run; rlrun.train takes "replay=…" for it; None: train
    half: ReplayHalf = ReplayHalf.actor


class ClusterKind(Enum):
    ray = "ray"
    local = "local"  # the whole system in this process


@dataclass
class ClusterConfig(Section):
    kind: ClusterKind = ClusterKind.ray
    address: str | None = None  # of a running Ray cluster, host:port; None: RAY_ADDRESS, else a private one
    temp_dir: str | None = None  # of the Ray that rlrun starts; None: the system's temporary directory
    object_store_bytes: int = 512 * 1024 * 1024  # of each node whose Ray rlrun starts
    placement_deadline_s: float = 300.0  # for other jobs on the cluster to free what the plan takes
    store_port: int | None = None  # where actor ranks meet, the next one for weight sync; None: any free ports
    start_deadline_s: float = 300.0  # without a sign of progress, before the first time of a phase is over
    step_deadline_s: float = 600.0  # without a sign of progress, later


@dataclass
class WatchdogConfig(Section):
    """A worker without progress causes an alarm after factor x its usual silence in that phase (a high quantile of the
    last ones without a warning), but not before floor_s. The limit is up to 3 times higher on a loaded host, and never
    above cluster.start_deadline_s (first time) or cluster.step_deadline_s."""

    enabled: bool = True  # False: waits end at the deadlines of `cluster`, without a diagnosis
    factor: float = 5.0
    floor_s: float = 20.0
    heartbeat_s: float = 2.0  # period at which every process writes its status to its file in the run folder


@dataclass
class RecoveryConfig(Section):
    """How often what was lost is replaced, since the run was started, before it gives up with status 7 or 8."""

    max_env_restarts: int = 8  # of env workers; simulators inside them: env.restart_limit
    max_rollout_restarts: int = 4
    max_actor_restarts: int = 2  # of the whole actor group, from the last checkpoint
    node_wait_s: float = 600.0  # for a lost node to come back, where the plan does not fit on what is left


class ReportFormat(Enum):
    table = "table"
    json = "json"


@dataclass
class DoctorConfig(Section):
    skip: list[str] = field(default_factory=list)  # checks that are left out, by their names in docs/doctor.md
    link_timeout_s: float = 3.0  # for a connection, and for an all-reduce of two processes; NCCL has 30 s at least
    format: ReportFormat = ReportFormat.table  # of what rlrun.doctor prints


class NodeCommand(Enum):
    start = "start"
    stop = "stop"  # what `start` started on this machine with these directories


@dataclass
class NodeConfig(Section):
    """For rlrun.node, which starts Ray on a node; `cluster.address` names the head, and the node that owns it is it."""

    command: NodeCommand = NodeCommand.start
    is_head: bool | None = None  # None: where cluster.address is this node's; else it has to be, or not to be
    group: str | None = None  # of placement.nodes, whose directories hold here; None: the first that this node fits
    expected: list[str] = field(
        default_factory=list
    )  # host names to wait for; empty: as many as placement.nodes counts
    ports: str | None = None  # "20000-20999", for firewalls; None: any free ones, beside the head's
    status_dir: str | None = None  # where each node writes its exit status, for scripts that look for the first to fail
    lost_after_s: float = 10.0  # a node that answers nothing for so long is lost


@dataclass
class PlacementConfig(Section):
    """Which worker runs where; `rlrun/placement/request.py` reads both spellings, configs/placement/ shows them."""

    nodes: dict[str, Any] = field(default_factory=dict)  # node groups; empty: one group of all nodes
    roles: dict[str, Any] = field(default_factory=dict)  # role -> "0-7" or {on:, accelerators:, ...}; empty: by rule
    inventory: str | None = None  # file that lists the nodes; None: the machines that are there
    offload: bool = False  # actor and rollout workers move to host memory while the other role works
    link_gbit_per_s: float = 10.0  # of a link between nodes; rlrun.plan says how long a step's bytes take on it


@dataclass
class RunConfig(Section):
    name: str = "turning_on_radio"
    seed: int = 0
    num_steps: int = 100  # training steps
    max_minutes: float | None = None  # stop after the step that crosses it, as if num_steps were reached
    output_dir: str | None = None  # run folder; None: runs/<name>/<time>
    cache_dir: str = ".cache/rlrun"  # demonstrations and warm-started policies that rlrun made itself
    python_path: list[str] = field(
        default_factory=list
    )  # folders of modules that a key names as module:ATTRIBUTE; those where one was found are added
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    doctor: DoctorConfig = field(default_factory=DoctorConfig)
    node: NodeConfig = field(default_factory=NodeConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    weight_sync: WeightSyncConfig = field(default_factory=WeightSyncConfig)
    demos: DemosConfig = field(default_factory=DemosConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)

    def __reduce__(self) -> tuple:
        """A process that unpickles a configuration first gets the path on which its sections' classes are found."""
        return _unpickled, (list(self.python_path), pickle.dumps(self.__dict__))


def _unpickled(python_path: list[str], state: bytes) -> RunConfig:
    put_on_path(python_path)
    config = RunConfig.__new__(RunConfig)
    config.__dict__.update(pickle.loads(state))
    return config
