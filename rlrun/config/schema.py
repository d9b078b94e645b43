"""Every key of a run, with its type and default: the only place where a default is written.

YAML files under `configs/` state differences from these. Sizes are counts unless the name ends in
`_s` (seconds), `_bytes` or `_hz`. None means that rlrun decides, and the comment says how. Counts that are "null: …"
follow from others when a configuration is composed (rlrun/config/registry.py); here is the usual number. Keys that take
`auto` get their numbers from the plan, by the machines (rlrun/placement/choices.py).
"""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

from rlrun.config.sections import (
    BELOW_ONE,
    COUNT,
    NO_KEY,
    NOT_NEGATIVE,
    OPEN_SHARE,
    POSITIVE,
    SHARE,
    KindSection,
    Range,
    RemovedKey,
    Section,
    bounded,
    named,
    put_on_path,
)

SEED = Range(0, 2**31 - 1)
DEMO_SEEDS = Range(0, 1_999_999)  # as in rlrun.edges.starts: the splits of starts
EVALUATION_SEEDS = Range(2_000_000, 2**31 - 1)
VLA_EVAL_PATH = "/vla-eval"  # of an address at which rlrun speaks vla-eval's protocol; vla-eval's servers take any
CHANGED_NUMBERS = ("action", "state", "reward")  # of a dataset, which demos.keys can scale
PICTURE_CHANGES = ("rotate_90", "rotate_180", "rotate_270", "mirror", "swap_red_blue")


class Renderer(Enum):
    auto = "auto"  # EGL, else OSMesa, else ray casting
    egl = "egl"
    osmesa = "osmesa"
    raycast = "raycast"


@dataclass
class EnvConfig(KindSection):
    """Settings that all simulators share; those of one kind are in `env.<kind>`, defined beside its class."""

    to_kinds = ("activity", "physics_hz", "controlled", "cameras", "proprio", "reward", "reward_potential")

    simulator: str = "embedded"  # name of an installed kind, or module:ATTRIBUTE of its spec; see docs/extending.md
    num_workers: int = bounded(2, COUNT, auto=True)  # null: 1 with cluster.kind=local, else 2 if they divide num_envs
    num_envs: int = bounded(16, COUNT)  # total over all env workers
    max_control_steps: int = bounded(60, COUNT)  # time limit of an episode, in control steps
    action_hz: int = bounded(30, COUNT)
    action_delay: int = bounded(0, NOT_NEGATIVE)  # control steps from an observation to its actions; the old ones go on
    image_size: int = bounded(64, Range(16))  # width and height of a frame, in pixels
    reward: Any = None  # module:FUNCTION, or terms {name: {function, weight}}; null: the simulator's own
    info: list[str] | None = named(None)  # numbers of the world's `info` that are logged; null: all, 64 at most
    max_abs_reward: float | None = bounded(1e6, POSITIVE)  # per control step; a larger one is an infra fault
    renderer: Renderer = Renderer.auto
    restart_limit: int = bounded(8, NOT_NEGATIVE)  # simulator restarts per env worker and run; one more ends the run
    own_process: bool | None = None  # own process per simulator; None: if it needs one, or has its own interpreter
    load_deadline_s: float = bounded(600.0, POSITIVE)  # own process: longest time without progress while loading
    call_deadline_s: float = bounded(300.0, POSITIVE)  # own process: time limit of a reset, a chunk or a picture


class AttentionKernel(Enum):
    """The implementation of full attention: each token attends to all tokens of its row, never to padding."""

    flash = "flash"  # the package flash-attn, for CUDA and bf16; one call for all rows, packed
    sdpa = "sdpa"  # torch's own attention, which also has a FlashAttention kernel
    eager = "eager"  # as papers write it; slow, and stores one weight per pair of tokens


class CompileBackend(Enum):
    """The backend of torch.compile."""

    inductor = "inductor"  # fused kernels: Triton on a GPU, C++ on a CPU; needs a C++ compiler on the node
    aot_eager = "aot_eager"  # traces, then runs torch's own kernels: no faster; shows what does not compile
    none = "none"  # no torch.compile


@dataclass
class PolicyConfig(KindSection):
    """Settings that all kinds of policy share; those of one kind are in the section of its name."""

    kind: str = "openvla_oft"  # name of an installed kind, or module:SPEC; its own keys are in the section of its name
    path: str | None = None  # policy folder to start from; None: a new policy, warm-started if its kind needs it
    cameras: dict[str, str] = field(default_factory=dict)  # the policy's cameras -> the simulator's; others go by name
    num_action_chunks: int = bounded(4, COUNT)  # C, the actions of one chunk
    use_proprio: bool = True
    value_hidden_sizes: list[int] = bounded([128, 64], COUNT)  # hidden layers of the critic
    attention: AttentionKernel | None = None  # in actor and HF rollout workers; None: flash if possible, else sdpa
    # in actor and HF rollout workers; None: inductor in actor ranks that have a GPU, Triton, a C++ compiler and
    # Python's headers, unless its first pass fails
    compile_backend: CompileBackend | None = None


class PlannedProgram(Enum):
    train = "train"
    train_async = "train_async"


class RolloutBackendKind(Enum):
    hf = "hf"
    sglang = "sglang"


class Precision(Enum):
    fp32 = "fp32"
    bf16 = "bf16"

    @property
    def num_bytes(self) -> int:
        """Bytes of a number."""
        return 4 if self is Precision.fp32 else 2


class AttentionBackend(Enum):
    """The attention backends of SGLang that support full, not only causal, attention."""

    flashinfer = "flashinfer"
    fa3 = "fa3"
    fa4 = "fa4"
    triton = "triton"
    torch_native = "torch_native"
    intel_amx = "intel_amx"


@dataclass
class SglangConfig(Section):
    """Settings of rollout.backend=sglang; docs/sglang.md describes its installation."""

    python: str | None = None  # interpreter with SGLang on the rollout workers' nodes; None: the one that runs rlrun
    attention_backend: AttentionBackend | None = None  # None: SGLang's choice, or torch_native on a CPU
    mem_fraction_static: float | None = bounded(None, OPEN_SHARE)  # share of device memory; None: SGLang's choice
    server_args: dict[str, Any] = field(default_factory=dict)  # fields of SGLang's ServerArgs; override rlrun's


@dataclass
class RolloutConfig(Section):
    backend: RolloutBackendKind = RolloutBackendKind.hf
    num_workers: int = bounded(2, COUNT, auto=True)  # null: 1 with cluster.kind=local, else 2, at most env.num_workers
    precision: Precision = Precision.fp32
    temperature: float = bounded(1.0, POSITIVE)  # of sampling in training; for evaluation see evaluation.temperature
    num_threads: int = bounded(1, COUNT)
    pipeline_stages: int = bounded(2, COUNT)  # groups of env workers: one is answered while the others simulate
    sglang: SglangConfig = field(default_factory=SglangConfig)


class ShardingStrategy(Enum):
    full_shard = "full_shard"
    shard_grad_op = "shard_grad_op"
    hybrid_shard = "hybrid_shard"
    no_shard = "no_shard"


class OptimizerKind(Enum):
    adamw = "adamw"  # fused AdamW; moments in actor.optimizer_precision
    adamw_8bit = "adamw_8bit"  # moments of large tensors in 8 bits; needs rlrun[bitsandbytes]


class LrSchedule(Enum):
    """The course of the learning rates over the training steps of a run."""

    constant = "constant"
    linear = "linear"  # falls evenly to min_lr_ratio
    cosine = "cosine"  # half a cosine, down to min_lr_ratio

    def factor(self, progress: float, min_lr_ratio: float) -> float:
        """Return the factor of the learning rate: 1 at the start, `min_lr_ratio` at the end of a falling schedule.

        progress: training steps done, as a share of num_steps; above 1 it counts as 1.
        Example: LrSchedule.linear.factor(0.5, 0.1) is 0.55.
        """
        if self is LrSchedule.constant:
            return 1.0
        at = min(1.0, max(0.0, progress))
        height = 1.0 - at if self is LrSchedule.linear else 0.5 * (1.0 + math.cos(math.pi * at))
        return min_lr_ratio + (1.0 - min_lr_ratio) * height


class RewardType(Enum):
    chunk = "chunk"  # one reward per chunk step; gamma applies per chunk step
    action = "action"  # one reward per control step; gamma applies per control step


class RatioLevel(Enum):
    token = "token"
    action = "action"
    chunk = "chunk"


class Aggregation(Enum):
    """How the policy's loss of all tokens becomes one number. What a training step has of an episode counts as one."""

    token_mean = "token-mean"  # over all tokens, so that long episodes weigh more, as verl's token-mean
    chunk_mean_token_sum = "chunk-mean-token-sum"  # of each chunk step's sum
    chunk_mean_token_mean = "chunk-mean-token-mean"  # of each chunk step's mean
    episode_mean_token_mean = "episode-mean-token-mean"  # of each episode's mean, as verl's seq-mean-token-mean


class MinibatchOf(Enum):
    """The unit of a minibatch's size; units that are learned from are drawn evenly into all minibatches."""

    chunk_steps = "chunk_steps"  # those learned from: the shorter episodes are, the fewer minibatches
    collected_steps = "collected_steps"  # also resting ones and groups left out: always as many minibatches
    episodes = "episodes"  # whole ones, however short: global_batch_size / horizon in each


class KlKind(Enum):
    k1 = "k1"
    k2 = "k2"
    k3 = "k3"
    abs = "abs"
    mse = "mse"
    low_var_kl = "low_var_kl"


class GroupMetric(Enum):
    """The measure by which the episodes of a group are compared."""

    episode_return = "episode_return"
    success = "success"


@dataclass
class FilterGroupsConfig(Section):
    """Dynamic sampling, as in DAPO: groups of episodes without signal are collected again. docs/policies.md"""

    enable: bool = False
    metric: GroupMetric = GroupMetric.episode_return  # a group whose episodes are all equal in it has no signal
    max_num_gen_batches: int = bounded(5, COUNT)  # times that a group is collected at most; then it is left out


@dataclass
class AlgorithmConfig(KindSection):
    """Settings that all algorithms share; those of one algorithm are in the section of its name."""

    name: str = "ppo"  # name of an installed algorithm, or module:SPEC; its own keys are in the section of its name
    horizon: int = bounded(16, COUNT)  # T, chunk steps per env and rollout epoch
    rollout_epochs: int = bounded(1, COUNT)  # per training step
    carry_episodes: bool = False  # continue running episodes in the next rollout epoch; False: reset all envs
    gamma: float = bounded(0.99, SHARE)
    reward_type: RewardType = RewardType.chunk
    update_epochs: int = bounded(2, COUNT)
    global_batch_size: int = bounded(256, COUNT)  # chunk steps per optimizer step, total over all ranks
    minibatch_of: MinibatchOf = MinibatchOf.chunk_steps  # what fills global_batch_size
    ratio_level: RatioLevel = RatioLevel.token
    aggregation: Aggregation = Aggregation.token_mean  # of the policy's loss; each is a mean
    clip_ratio_low: float = bounded(0.2, OPEN_SHARE)
    clip_ratio_high: float = bounded(0.28, POSITIVE)
    clip_ratio_c: float = bounded(3.0, Range(1, is_low_open=True))  # bound of the dual clip, for negative advantages
    behavior_weight_cap: float | None = bounded(2.0, POSITIVE)  # of importance weights of old batches; None: plain PPO
    entropy_coef: float = bounded(0.0, NOT_NEGATIVE)
    kl_coef: float = bounded(0.0, NOT_NEGATIVE)  # KL penalty towards the first policy; 0: keep none; policy=*_nft: 0.1
    kl_kind: KlKind = KlKind.low_var_kl
    imitation_coef: float = bounded(0.0, NOT_NEGATIVE)  # of demonstrations imitated beside each optimizer step; 0: none
    clip_advantages: float | None = bounded(None, POSITIVE)  # bound of normalized absolute advantages; None: none
    clip_returns: float | None = bounded(None, POSITIVE)  # bound of absolute returns, the critic's targets; None: none
    target_kl: float | None = bounded(0.05, POSITIVE)  # k3 estimate of the KL that ends an update; None: none
    filter_groups: FilterGroupsConfig = field(default_factory=FilterGroupsConfig)


@dataclass
class LoraConfig(Section):
    """Low-rank adapters: only few weights train, which keeps gradients, optimizer state and weight sync small."""

    rank: int = bounded(0, NOT_NEGATIVE)  # 0: no adapters, all weights train
    alpha: float = bounded(16.0, POSITIVE)  # the adapter's output is scaled by alpha / rank
    targets: list[str] | None = named(None)  # modules with adapters; null: those that the kind of policy names
    trained_whole: list[str] | None = named(None)  # modules that train beside them; null: as the kind names them


@dataclass
class ActorConfig(Section):
    num_workers: int = bounded(2, COUNT, auto=True)  # FSDP ranks; null: auto, with 2 on a machine without accelerators
    sharding: ShardingStrategy = ShardingStrategy.full_shard
    fsdp_size: int | None = bounded(None, COUNT)  # hybrid_shard: ranks per shard group; None: ranks per node
    param_precision: Precision = Precision.fp32
    reduce_precision: Precision = Precision.fp32
    optimizer_precision: Precision = Precision.fp32  # of master weights, and of optimizer state that is not in 8 bits
    micro_batch_size: int = bounded(64, COUNT, auto=True)  # chunk steps per rank and pass; null: at most 256
    activation_checkpointing: float = bounded(0.0, SHARE, auto=True)  # share of blocks; true: all of them
    cpu_offload: bool | None = None  # actor's state in host memory, which is slow; None: where no other plan fits
    replicate_frozen: bool | None = None  # frozen weights whole on every rank; None: where they fit
    lora: LoraConfig = field(default_factory=LoraConfig)
    optimizer: OptimizerKind = OptimizerKind.adamw
    lr: float = bounded(3e-4, NOT_NEGATIVE)
    value_lr: float = bounded(1e-3, NOT_NEGATIVE)
    betas: list[float] = bounded([0.9, 0.999], BELOW_ONE)
    eps: float = bounded(1e-8, POSITIVE)
    weight_decay: float = bounded(0.0, NOT_NEGATIVE)
    # A policy is trained if it was imitated or comes from policy.path; steps of the value head alone do not count.
    lr_warmup_steps: int = bounded(0, NOT_NEGATIVE)  # optimizer steps; null: 20 for policy gradients, if trained
    lr_schedule: LrSchedule = LrSchedule.constant  # of lr and value_lr, over num_steps
    min_lr_ratio: float = bounded(0.0, SHARE)  # linear, cosine: learning rates at the end, as a share of the first
    clip_grad_norm: float = bounded(1.0, POSITIVE)
    num_threads: int = bounded(1, COUNT)

    @property
    def ranks_of_a_copy(self) -> int:
        """The number of ranks that share one copy of the parameters."""
        if self.sharding is ShardingStrategy.no_shard:
            return 1
        if self.sharding is ShardingStrategy.hybrid_shard:
            return self.fsdp_size or self.num_workers
        return self.num_workers

    @property
    def keeps_gathered(self) -> bool:
        """Whether gathered parameters stay from the first forward pass of a minibatch to its last backward pass."""
        return self.sharding in (ShardingStrategy.shard_grad_op, ShardingStrategy.no_shard)


class WeightTransport(Enum):
    device = "device"
    object_store = "object_store"
    collective = "collective"


@dataclass
class WeightSyncConfig(Section):
    transport: WeightTransport | None = None  # None: by the plan, for each rollout worker; docs/concepts/placement.md
    bucket_bytes: int = bounded(512 * 1024**2, Range(1024))  # each bucket is packed while the one before it is sent
    is_checksum_verified: bool = True  # of each bucket; it takes as long as reading the weights once at each end


@dataclass
class DemoKeysConfig(Section):
    """Features of `demos.path` by their role, and how they are changed; only with it. docs/howto/demonstrations.md"""

    # proprioception: a feature, or a list of features that are joined; None: observation.state or state, or none
    state: Any = None
    action: Any = None  # actions: a feature, or a list of features that are joined; None: action or actions
    images: list[str] | None = None  # cameras, in this order; None: all features of colour pictures
    # factors by which numbers are multiplied: of action, state or reward, or of one number, as {action/7: -1}
    scale: dict[str, Any] = field(default_factory=dict)
    offset: dict[str, Any] = field(default_factory=dict)  # added to numbers after `scale`, as {action/7: -1}
    # camera -> changes in order, of rotate_90, rotate_180, rotate_270 (counterclockwise), mirror, swap_red_blue
    pictures: dict[str, Any] = field(default_factory=dict)


@dataclass
class DemosConfig(Section):
    path: str | None = None  # folder of a LeRobot dataset; None: record the expert, and cache the dataset
    keys: DemoKeysConfig = field(default_factory=DemoKeysConfig)
    episodes: Any = None  # of `path`: a list of episode_index, or a range "0:50" (quoted in YAML); None: all
    only_successful: bool = False  # of `path` only episodes whose column success (or feature next.success) is true
    # of `path`: an episode of so many frames without success was cut off, whose next.done is not terminal; 0: none
    # was; None: those with next.truncated, and those that failed after the same number of frames as the longest
    time_limit: int | None = bounded(None, NOT_NEGATIVE)
    fps: float | None = bounded(None, POSITIVE)  # control steps a second in `path`; None: fps of its meta/info.json
    memory_gb: float = bounded(4.0, NOT_NEGATIVE)  # decoded pictures that each actor rank keeps in memory
    num_episodes: int = bounded(128, COUNT)
    noise: float = bounded(0.01, NOT_NEGATIVE)  # std of the noise on the expert's actions, as a share of their range
    seed: int = bounded(1_000_000, DEMO_SEEDS)  # reset seed of the first episode


@dataclass
class SftConfig(Section):
    num_steps: int = bounded(300, NOT_NEGATIVE)  # optimizer steps
    batch_size: int = bounded(64, COUNT)  # chunk steps per optimizer step, total over all ranks
    lr: float = bounded(1e-3, POSITIVE)
    lr_warmup_steps: int = bounded(20, NOT_NEGATIVE)  # optimizer steps; null: 20, or a quarter of num_steps
    label_smoothing_bins: float = bounded(0.0, NOT_NEGATIVE)  # std, in bins, of targets around the right bin; 0: none


class PrefixSchedule(Enum):
    """How coming actions guide a new chunk, after those that are executed meanwhile."""

    zeros = "zeros"  # not at all
    ones = "ones"  # as much as those
    linear = "linear"  # less and less, by an equal amount each
    exp = "exp"  # less and less, at first faster


@dataclass
class RealTimeChunkingConfig(Section):
    """Real-time chunking of evaluations, for flow policies: a new chunk goes on with the old one. docs/policies.md"""

    enable: bool = False  # not in training, whose log-probabilities are those of free chunks
    execution_horizon: int = bounded(10, COUNT)  # actions of the old chunk, from the observation on, that guide the new
    max_guidance_weight: float = bounded(10.0, POSITIVE)  # of a difference from the old chunk, in a flow step
    schedule: PrefixSchedule = PrefixSchedule.linear


@dataclass
class EvaluationConfig(Section):
    every_steps: int = bounded(0, NOT_NEGATIVE)  # 0: only before the first and after the last step
    num_episodes: int = bounded(64, COUNT)
    temperature: float = bounded(1.0, NOT_NEGATIVE)  # of sampling; 0: always the most likely action
    # reset seed of the first episode; episode i has seed + i. Lower seeds are those of demonstrations
    seed: int = bounded(2_000_000, EVALUATION_SEEDS)
    checkpoint: str | None = None  # for rlrun.eval and rlrun.serve: folder of a run, checkpoint or exported policy
    # for rlrun.eval: a policy server instead of a checkpoint; ws://host:port of BEHAVIOR's protocol for an R1Pro, of
    # openpi's protocol for other worlds; ws://host:port/vla-eval of a model server of vla-eval
    server: str | None = None
    server_timeout_s: float = bounded(120.0, POSITIVE)  # longest wait for its connection, its hello and each answer
    real_time_chunking: RealTimeChunkingConfig = field(default_factory=RealTimeChunkingConfig)

    @property
    def is_server_of_vla_eval(self) -> bool:
        """Whether `server` names vla-eval's protocol, by its path."""
        return self.server is not None and urlsplit(self.server).path.rstrip("/") == VLA_EVAL_PATH


@dataclass
class CertifyConfig(Section):
    """Settings of rlrun.certify, which measures a policy on test starts by a rule that is fixed beforehand."""

    num_episodes: int = bounded(200, COUNT)  # with half_width: at most
    half_width: float | None = bounded(None, OPEN_SHARE)  # stop when the 95 % interval is at most twice as wide
    perturb: list[str] = named([])  # perturbed worlds to test in too, by name; [all]: all that the simulator has
    waive: list[str] = named([])  # rules that may be broken; what they forbid then stands on the card


@dataclass
class ServeConfig(Section):
    """Settings of rlrun.serve, which serves a policy to openpi's clients, the BEHAVIOR evaluator and vla-eval."""

    host: str = "127.0.0.1"  # address to listen at; every client that reaches it may use it, without a password
    port: int = bounded(8000, Range(0, 65535))  # 0: any free port
    instruction: str | None = named(None)  # for requests without a prompt; None: an R1Pro's sentence of its activity
    replan_steps: int | None = bounded(None, COUNT)  # control steps per pass, for clients that want one action; None: C
    allowed_origins: list[str] = field(default_factory=list)  # web pages that may connect, as http://HOST:PORT
    max_clients: int = bounded(64, COUNT)
    max_message_bytes: int = bounded(64 * 1024**2, COUNT)  # an observation of three cameras with depth takes 8 MB
    idle_timeout_s: float = bounded(1800.0, POSITIVE)  # of a client without requests; scenes take minutes to load
    ping_s: float = bounded(60.0, POSITIVE)  # interval of WebSocket pings to each client, and time limit of the answer


class SelectionStarts(Enum):
    """The starts of the evaluations within a run, which choose its best checkpoint and may end it."""

    validation = "validation"
    test = "test"  # as many papers do: stands beside every number, and `rlrun certify` refuses the run


@dataclass
class CheckpointConfig(Section):
    every_steps: int = bounded(10, NOT_NEGATIVE)  # training steps between checkpoints; 0: only the last
    keep_last: int = bounded(2, COUNT)
    is_best_kept: bool = True  # also save at once after the best evaluation so far; with every_steps=0 only mark it
    best_on: SelectionStarts = SelectionStarts.validation  # by whose success rate the best one is chosen
    is_asynchronous: bool = False  # copy the state to host memory, and write it while training goes on
    resume: str | None = "auto"  # "auto": newest whole one in the run folder; or a path to begin with; None: start anew
    verify: bool = True  # compare checksums of checkpoints and policies before use; False: only names and sizes


class Verbosity(Enum):
    quiet = "quiet"
    normal = "normal"
    debug = "debug"


@dataclass
class LoggingConfig(Section):
    verbosity: Verbosity = Verbosity.normal  # quiet: results and warnings; debug: all metrics, and debug lines in logs
    tensorboard: bool = True  # write event files into the run folder
    wandb: bool = False  # as WANDB_MODE says; unset: online if W&B finds a key, else offline
    trackio: bool = False  # needs rlrun[trackio]; shown by `trackio show`
    project: str = "rlrun"  # name of the project in W&B and Trackio
    video_every_steps: int = bounded(0, NOT_NEGATIVE)  # training steps; 0: with the first and last evaluation
    video_episodes: int = bounded(4, NOT_NEGATIVE)  # episodes shown side by side in a video
    profile_steps: list[int] = bounded([], NOT_NEGATIVE)  # training steps, from 0, to profile in all workers


@dataclass
class RecordConfig(Section):
    """Recording of the messages between roles, in recording/ of the run folder. From it the actor can learn again
    without simulators: rlrun.train replay=RUN_FOLDER."""

    num_steps: int = bounded(0, NOT_NEGATIVE)  # training steps to record; 0: none
    first_step: int = bounded(0, NOT_NEGATIVE)  # first training step to record, from 0
    edges: list[str] = named(["observation", "actions", "trajectory", "weights"])
    max_bytes: int = bounded(4 * 1024**3, POSITIVE)  # divided among env workers and actor, each with a share


@dataclass
class ReplayConfig(Section):
    removed = {"half": RemovedKey("Leave it out: a replay learns again, without simulators.", ("actor", "env"))}

    path: str | None = None  # folder of a recorded run, also "replay=…" on the command line; None: train


class ClusterKind(Enum):
    ray = "ray"
    local = "local"  # all workers in one process


@dataclass
class ClusterConfig(Section):
    removed = {
        "channel_security": RemovedKey(
            "Leave it out: env and rollout workers authenticate by a token, and encrypt nothing; use a VPN where a "
            "network is not trusted.",
            ("curve", "token"),
        )
    }

    kind: ClusterKind = ClusterKind.ray
    address: str | None = None  # host:port of a running Ray cluster; None: RAY_ADDRESS, else a private Ray
    temp_dir: str | None = None  # folder for the Ray that rlrun starts; None: the system's temporary directory
    object_store_bytes: int = bounded(512 * 1024**2, Range(78_643_200))  # of each node on which rlrun starts Ray
    placement_deadline_s: float = bounded(300.0, POSITIVE)  # until other jobs free the resources of the plan
    store_port: int | None = bounded(None, Range(1024, 65534))  # of actor ranks; weight sync takes the next; None: any
    start_deadline_s: float = bounded(300.0, POSITIVE)  # longest silence of a worker in the first run of a phase
    step_deadline_s: float = bounded(600.0, POSITIVE)  # longest silence of a worker in later runs of a phase


@dataclass
class WatchdogConfig(Section):
    """The watchdog raises an alarm after `factor` x the usual silence of a worker in that phase (a high quantile of the
    last silences without a warning), but not before `floor_s`. The limit is higher on a loaded host, and
    never above cluster.start_deadline_s (first time) or cluster.step_deadline_s."""

    enabled: bool = True  # False: waits end at the deadlines of `cluster`, without a diagnosis
    factor: float = bounded(5.0, Range(1))
    floor_s: float = bounded(20.0, POSITIVE)
    heartbeat_s: float = bounded(2.0, Range(0.1))  # interval at which every process writes its status to the run folder


@dataclass
class RecoveryConfig(Section):
    """How many lost workers are replaced after the start of a run. Beyond that it ends with exit status 7 or 8."""

    max_env_restarts: int = bounded(8, NOT_NEGATIVE)  # of env workers; for simulators inside them see env.restart_limit
    max_rollout_restarts: int = bounded(4, NOT_NEGATIVE)
    max_actor_restarts: int = bounded(2, NOT_NEGATIVE)  # restarts of all actor workers, from the last checkpoint
    node_wait_s: float = bounded(600.0, NOT_NEGATIVE)  # for a lost node, if no plan fits on the remaining nodes


class ReportFormat(Enum):
    table = "table"
    json = "json"


@dataclass
class DoctorConfig(Section):
    skip: list[str] = named([])  # checks to skip, by their names in docs/doctor.md
    link_timeout_s: float = bounded(3.0, POSITIVE)  # of a connection, and of an all-reduce; NCCL: at least 30 s
    format: ReportFormat = ReportFormat.table  # output format of rlrun.doctor


class NodeCommand(Enum):
    start = "start"
    stop = "stop"  # stop what `start` started on this machine with these directories


@dataclass
class NodeConfig(Section):
    """Settings of rlrun.node, which starts Ray on a node. The head is the node that has `cluster.address`."""

    command: NodeCommand = NodeCommand.start
    is_head: bool | None = None  # whether this node must be the head; None: it is if cluster.address is its own
    group: str | None = None  # group of placement.nodes with this node's directories; None: the first that matches it
    expected: list[str] = field(
        default_factory=list
    )  # names or addresses of hosts to wait for; empty: as many nodes as placement.nodes has
    ports: str | None = None  # port range "20000-20999", for firewalls; None: any free ports, besides the head's
    status_dir: str | None = None  # each node writes its exit status here, for scripts that look for the first failure
    lost_after_s: float = bounded(10.0, Range(2))  # a node that has not answered for this long counts as lost


@dataclass
class PlacementConfig(Section):
    """Which worker runs where. `rlrun/placement/plan.py` reads both spellings; configs/placement/ has examples."""

    nodes: dict[str, Any] = field(default_factory=dict)  # node groups by name; empty: one group of all nodes
    roles: dict[str, Any] = field(default_factory=dict)  # role -> "0-7" or {on:, accelerators:, ...}; empty: by rule
    inventory: str | None = None  # file that lists the nodes; None: measure the machines
    offload: bool | None = None  # actor and rollout take turns on accelerators; None: if faster, or nothing else fits
    is_counted: bool = True  # refuse accelerators to a policy that cannot be counted
    link_gbit_per_s: float = bounded(10.0, POSITIVE)  # of a link between nodes, for the transfer times of rlrun.plan


@dataclass
class PlanConfig(Section):
    program: PlannedProgram = PlannedProgram.train  # that will run; rlrun.train_async collects while the actor learns
    details: bool = False  # rlrun.plan prints each node, reason, variable, host, object store and link, too


@dataclass
class RunConfig(Section):
    name: str = named("turning_on_radio")
    seed: int = bounded(0, SEED)
    num_steps: int = bounded(100, NOT_NEGATIVE)  # training steps
    callbacks: list[Any] = field(
        default_factory=list
    )  # module:Class of a rlrun.Callback, or {use: module:Class, argument: value}; docs/howto/callbacks.md
    max_minutes: float | None = bounded(None, POSITIVE)  # end after the step in which this time is over
    output_dir: str | None = None  # run folder; None: runs/<name>/<time>
    cache_dir: str = ".cache/rlrun"  # folder for demonstrations and warm-started policies that rlrun has made
    python_path: list[str] = field(
        default_factory=list
    )  # folders with the modules of module:ATTRIBUTE keys; rlrun adds those in which it found one
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    doctor: DoctorConfig = field(default_factory=DoctorConfig)
    node: NodeConfig = field(default_factory=NodeConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    weight_sync: WeightSyncConfig = field(default_factory=WeightSyncConfig)
    demos: DemosConfig = field(default_factory=DemosConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    certify: CertifyConfig = field(default_factory=CertifyConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    auto: list[str] = field(default_factory=list, metadata={NO_KEY: True})  # keys whose numbers the plan will choose
    collects_ahead: bool = field(default=False, metadata={NO_KEY: True})  # beside the update, as rlrun.train_async does

    @property
    def are_adapters_apart(self) -> bool:
        """Whether rollout workers merge adapters into a copy of the base, so that only what trains is sent.

        Actor ranks merge for an engine of SGLang, and where roles take turns: a copy of the base would have to come
        from host memory in each turn, as the merged weights do.
        """
        is_hf = self.rollout.backend is RolloutBackendKind.hf
        return self.actor.lora.rank > 0 and is_hf and not self.placement.offload

    @property
    def samples_per_step(self) -> int:
        """Chunk steps that a training step collects, over all envs."""
        return self.env.num_envs * self.algorithm.horizon * self.algorithm.rollout_epochs

    @property
    def chunks_of_episode(self) -> int:
        """Chunk steps of the longest episode; with a delay the first one has fewer control steps."""
        return -(-(self.env.max_control_steps + self.env.action_delay) // self.policy.num_action_chunks)

    def __reduce__(self) -> tuple:
        """Pickle python_path first, since a process needs it to import the classes of the sections."""
        return _unpickled, (list(self.python_path), pickle.dumps(self.__dict__))


def _unpickled(python_path: list[str], state: bytes) -> RunConfig:
    put_on_path(python_path)
    config = RunConfig.__new__(RunConfig)
    config.__dict__.update(pickle.loads(state))
    return config
