"""Cross-field checks: refuse, before anything starts, faults that types and ranges cannot express.

Each check is a small generator of RunErrors over the whole configuration; `CHECKS` lists them all.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from rlrun.config.registry import ALGORITHMS, POLICIES, REGISTRIES
from rlrun.config.schema import (
    EVALUATION_SEEDS,
    VLA_EVAL_PATH,
    AttentionKernel,
    ClusterKind,
    DemosConfig,
    EvaluationConfig,
    LrSchedule,
    Precision,
    RolloutBackendKind,
    RunConfig,
    SglangConfig,
    ShardingStrategy,
    WeightTransport,
)
from rlrun.config.sections import KindSection, Range, Section, as_yaml, bounds_of
from rlrun.config.simulator_spec import simulator_spec
from rlrun.system.errors import ExitStatus, RunError, RunErrors

Faults = Iterator[RunError]
Check = Callable[[RunConfig], Faults]


def not_multiple(key: str, value: int, of_key: str, of: int) -> Faults:
    """Yield a fault unless `value` is a multiple of `of`."""
    if value % of:
        down = value // of * of
        choices = f"{down} or {down + of}" if down else f"{of}"
        yield RunError(
            f"{key} ({value}) is no multiple of {of_key} ({of}).",
            key=key,
            value=value,
            cause=f"{value} leaves a remainder of {value % of}.",
            remedy=f"Take {choices}, or another {of_key}.",
        )


def wrong_names(key: str, names: list[str], known: Sequence[str]) -> Faults:
    """Yield a fault unless a list has at least one of the known names, and each at most once."""
    wrong = [name for name in names if name not in known]
    if not names or wrong or len(set(names)) < len(names):
        what = f"'{wrong[0]}' is unknown" if wrong else "a name stands twice" if names else "it is empty"
        yield RunError(
            f"'{key}': {what}.",
            key=key,
            value=list(names),
            cause=f"Known: {', '.join(known)}.",
            remedy="Name each once.",
        )


def no_effect(key: str, value: object, because: str, remedy: str) -> RunError:
    """Return the fault of a key that is set but has no effect."""
    return RunError(f"'{key}' would have no effect.", key=key, value=value, cause=f"{because}.", remedy=remedy)


def nearest_divisor(number: int, near: int) -> int:
    """Return the divisor of `number` that is closest to `near`."""
    divisors = [divisor for divisor in range(1, number + 1) if number % divisor == 0]
    return min(divisors, key=lambda divisor: abs(divisor - near))


LONGEST_NAME = 255  # bytes
EDGES = ("observation", "actions", "trajectory", "weights")  # files of rlrun/data/recording.py


def check(config: RunConfig, skipped: frozenset[Check] = frozenset()) -> None:
    """Raise RunError for one fault, or RunErrors for several.

    skipped: those of CHECKS that do not concern the program, such as OF_TRAINING where no actor worker starts.
    """
    faults = list(numbers_in_range(config))
    if not faults:  # the checks rely on the ranges
        for one_check in CHECKS:
            if one_check not in skipped:
                faults += one_check(config)
        for registry in REGISTRIES:
            if registry is not ALGORITHMS or not skipped >= OF_TRAINING:
                spec = registry.chosen(config)
                faults += spec.check(config)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise RunErrors(faults)


def numbers_in_range(section: Section, prefix: str = "") -> Faults:
    """Every number, and every number of a list, is in its range; None means that rlrun decides."""
    for name, allowed in bounds_of(type(section)):
        value = getattr(section, name)
        numbers = value if isinstance(value, list) else [] if value is None else [value]
        if not all(allowed.holds(number) for number in numbers):
            yield _out_of_range(f"{prefix}{name}", value, allowed, getattr(type(section)(), name))
    parts = {one.name: getattr(section, one.name) for one in fields(section)}  # type: ignore[arg-type]
    if isinstance(section, KindSection):
        parts |= section.sections
    for name, part in parts.items():
        if isinstance(part, Section):
            yield from numbers_in_range(part, f"{prefix}{name}.")


def _out_of_range(key: str, value: object, allowed: Range, default: object) -> RunError:
    return RunError(
        f"'{key}' is out of range.",
        key=key,
        value=value,
        cause=f"It must be {allowed}.",
        remedy=f"The default is {as_yaml(default)}.",
    )


def envs_divide_among_workers(config: RunConfig) -> Faults:
    """All env workers have the same number of envs."""
    yield from not_multiple("env.num_envs", config.env.num_envs, "env.num_workers", config.env.num_workers)


def envs_divide_among_ranks(config: RunConfig) -> Faults:
    """All actor ranks own the same number of envs."""
    yield from not_multiple("env.num_envs", config.env.num_envs, "actor.num_workers", config.actor.num_workers)


def rollout_workers_have_work(config: RunConfig) -> Faults:
    """Each env worker uses one rollout worker, so rollout workers beyond the number of env workers would be idle."""
    if config.rollout.num_workers > config.env.num_workers:
        yield RunError(
            f"{config.rollout.num_workers} rollout workers for {config.env.num_workers} env workers: some would idle.",
            key="rollout.num_workers",
            value=config.rollout.num_workers,
            cause="Each env worker is served by one rollout worker.",
            remedy=f"Take at most env.num_workers={config.env.num_workers}, or more env workers.",
        )


def batch_divides_samples(config: RunConfig) -> Faults:
    """The chunk steps of a training step are a whole number of global batches."""
    algorithm = config.algorithm
    samples = config.samples_per_step
    if samples % algorithm.global_batch_size:
        yield RunError(
            f"{samples} chunk steps of a training step do not fill whole batches of {algorithm.global_batch_size}.",
            key="algorithm.global_batch_size",
            value=algorithm.global_batch_size,
            cause=f"env.num_envs ({config.env.num_envs}) x algorithm.horizon ({algorithm.horizon}) x "
            f"algorithm.rollout_epochs ({algorithm.rollout_epochs}) = {samples} is no multiple of it.",
            remedy=f"Take {nearest_divisor(samples, algorithm.global_batch_size)}, or another horizon.",
        )


def batch_divides_among_ranks(config: RunConfig) -> Faults:
    """Every rank takes an equal part of a global batch."""
    yield from not_multiple(
        "algorithm.global_batch_size",
        config.algorithm.global_batch_size,
        "actor.num_workers",
        config.actor.num_workers,
    )


def micro_batches_fill_a_rank(config: RunConfig) -> Faults:
    """A rank's part of a global batch is a whole number of micro-batches."""
    per_rank = config.algorithm.global_batch_size // config.actor.num_workers
    micro = config.actor.micro_batch_size
    if config.algorithm.global_batch_size % config.actor.num_workers == 0 and per_rank % micro:
        yield RunError(
            f"A rank's {per_rank} chunk steps of a batch do not fill whole micro batches of {micro}.",
            key="actor.micro_batch_size",
            value=micro,
            cause=f"algorithm.global_batch_size ({config.algorithm.global_batch_size}) / actor.num_workers "
            f"({config.actor.num_workers}) = {per_rank} is no multiple of it.",
            remedy=f"Take {nearest_divisor(per_rank, micro)}.",
        )


def cameras_exist(config: RunConfig) -> Faults:
    """The simulator has all named cameras, and each is named once."""
    known = simulator_spec(config.env).cameras
    if known is not None:
        yield from wrong_names("env.cameras", config.env.cameras, known)


def interpreter_has_a_process(config: RunConfig) -> Faults:
    """A simulator without its own process uses the interpreter of its worker."""
    named = [name for name, group in config.placement.nodes.items() if group and group.get("python")]
    if config.env.own_process is False and (named or simulator_spec(config.env).needs_own_process):
        yield RunError(
            "The simulator needs a process of its own.",
            key="env.own_process",
            value=False,
            cause=f"placement.nodes.{named[0]}.python names its interpreter."
            if named
            else f"{config.env.simulator} takes over the process that it runs in.",
            remedy="Leave out env.own_process.",
        )


def attention_has_a_policy(config: RunConfig) -> Faults:
    """Small networks have no attention; flash-attn supports half precision only."""
    policy = config.policy
    if policy.attention is not None and not POLICIES.get(policy.kind).has_attention:
        why = f"policy.kind={policy.kind} has no attention"
        yield no_effect("policy.attention", policy.attention.name, why, "Drop it.")
        return
    computed = {"actor.param_precision": config.actor.param_precision}
    if config.rollout.backend is RolloutBackendKind.hf:
        computed["rollout.precision"] = config.rollout.precision
    exact = [key for key, precision in computed.items() if precision is Precision.fp32]
    if policy.attention is AttentionKernel.flash and exact:
        yield RunError(
            "flash-attn computes in half precision only.",
            key="policy.attention",
            value="flash",
            cause=f"fp32 is what {' and '.join(exact)} say{'s' if len(exact) == 1 else ''}.",
            remedy=f"Set {' '.join(f'{key}=bf16' for key in exact)}, or policy.attention=sdpa.",
        )


def demonstrations_have_an_expert(config: RunConfig) -> Faults:
    """A new policy that starts from demonstrations needs a dataset, or a simulator with an expert."""
    others = (config.placement.inventory, config.evaluation.checkpoint, config.evaluation.server)
    is_run = all(one is None for one in others)  # a plan needs no policy
    if is_run and not simulator_spec(config.env).has_expert(config.env) and _needs_demonstrations(config):
        yield RunError(
            f"A new policy needs demonstrations, and {config.env.simulator} has no expert to make them.",
            key="policy.path",
            value="null",
            cause="demos.path is null, and so is policy.path or algorithm.imitation_coef above 0.",
            remedy="Give policy.path (a checkpoint) or demos.path (demonstrations as a LeRobot dataset), name an "
            "expert if the world's own section has that key, or take a policy that begins from scratch, such as "
            "policy.kind=mlp (states) or policy.kind=cnn (pixels).",
        )


def _needs_demonstrations(config: RunConfig) -> bool:
    is_imitated = config.policy.path is None or config.algorithm.imitation_coef > 0
    return POLICIES.get(config.policy.kind).needs_demonstrations and is_imitated and config.demos.path is None


def imitation_beside_has_an_effect(config: RunConfig) -> Faults:
    """Imitation beside reinforcement learning needs a policy that imitates, and an on-policy algorithm."""
    key, value = "algorithm.imitation_coef", config.algorithm.imitation_coef
    if value == 0:
        return
    if not POLICIES.get(config.policy.kind).needs_demonstrations:
        yield RunError(
            f"A policy of kind {config.policy.kind} cannot imitate.",
            key=key,
            value=value,
            cause="It begins from scratch, and has no imitation loss.",
            remedy="Set algorithm.imitation_coef=0, or take a kind that begins with demonstrations.",
        )
    if not ALGORITHMS.get(config.algorithm.name).is_on_policy:
        yield RunError(
            f"{config.algorithm.name} takes no imitation loss into its optimizer steps.",
            key=key,
            value=value,
            cause="Off-policy algorithms take optimizer steps of their own.",
            remedy="Set algorithm.imitation_coef=0, or take an on-policy algorithm such as ppo or grpo.",
        )


def backend_serves_the_policy(config: RunConfig) -> Faults:
    """The rollout backend can serve the policy."""
    backend, served_by = config.rollout.backend.value, POLICIES.get(config.policy.kind).backends
    if backend not in served_by:
        yield RunError(
            f"The rollout backend {backend} cannot serve policy.kind={config.policy.kind}.",
            key="rollout.backend",
            value=backend,
            cause=f"The policy names {', '.join(served_by)}.",
            remedy=f"Set rollout.backend={served_by[0]}.",
        )


def local_cluster_has_one_rank(config: RunConfig) -> Faults:
    """One process can have only one FSDP rank."""
    if config.cluster.kind is ClusterKind.local and config.actor.num_workers != 1:
        yield RunError(
            "The whole system in one process has room for one actor rank.",
            key="actor.num_workers",
            value=config.actor.num_workers,
            cause="cluster.kind=local runs every worker in this process; ranks of a collective each need their own.",
            remedy="Leave it out, or take cluster.kind=ray.",
        )


def transport_needs_processes(config: RunConfig) -> Faults:
    """Collectives and device memory can send weights only between processes."""
    transport = config.weight_sync.transport
    if config.cluster.kind is ClusterKind.local and transport not in (None, WeightTransport.object_store):
        yield RunError(
            "One process cannot send itself weights by a collective, or into memory of its accelerator.",
            key="weight_sync.transport",
            value=transport.value,
            cause="cluster.kind=local runs actor and rollout in this process.",
            remedy="Leave weight_sync.transport out, or take cluster.kind=ray.",
        )


def local_cluster_has_no_address(config: RunConfig) -> Faults:
    """Without Ray, an address would be ignored."""
    if config.cluster.kind is ClusterKind.local and config.cluster.address is not None:
        yield no_effect(
            "cluster.address",
            config.cluster.address,
            "cluster.kind=local starts no Ray",
            "Drop it, or cluster.kind=ray.",
        )


def workers_know_their_head(config: RunConfig) -> Faults:
    """A node that is not the head needs the address of a head to join."""
    if config.node.is_head is False and config.cluster.address is None:
        yield RunError(
            "A node that is not the head needs the head's address.",
            key="node.is_head",
            value=False,
            cause="cluster.address is not set.",
            remedy="Write address=HOST:PORT, as train-0:6379.",
        )


def hybrid_groups_divide_ranks(config: RunConfig) -> Faults:
    """hybrid_shard splits the ranks into shard groups of more than one rank."""
    actor = config.actor
    if actor.sharding is not ShardingStrategy.hybrid_shard:
        if actor.fsdp_size is not None:
            yield no_effect(
                "actor.fsdp_size",
                actor.fsdp_size,
                f"actor.sharding={actor.sharding.name} has one shard group",
                "Drop it, or take actor.sharding=hybrid_shard.",
            )
        return
    if actor.fsdp_size is None:
        return
    if actor.fsdp_size < 2:
        yield RunError(
            "A shard group of one rank shards nothing.",
            key="actor.fsdp_size",
            value=actor.fsdp_size,
            cause="actor.sharding=hybrid_shard shards inside a group and copies across groups.",
            remedy="Take at least 2, or actor.sharding=no_shard.",
        )
    yield from not_multiple("actor.num_workers", actor.num_workers, "actor.fsdp_size", actor.fsdp_size)


def frozen_weights_are_on_the_device(config: RunConfig) -> Faults:
    """With actor.cpu_offload FSDP brings all weights to the device, and takes them away again."""
    actor = config.actor
    if actor.cpu_offload and actor.replicate_frozen is not None:
        because = "actor.cpu_offload=true keeps all weights in host memory"
        yield no_effect("actor.replicate_frozen", actor.replicate_frozen, because, "Drop it, or actor.cpu_offload.")


def adapters_have_layers(config: RunConfig) -> Faults:
    """LoRA needs a policy that names parts for it; each part either gets adapters or trains as a whole."""
    lora = config.actor.lora
    if lora.rank == 0:
        return
    spec = POLICIES.get(config.policy.kind)
    if spec.lora is None:
        yield RunError(
            f"Policies of kind {spec.name} get no adapters.",
            key="actor.lora.rank",
            value=lora.rank,
            cause="Its spec names no parts whose layers could have them.",
            remedy="Set actor.lora.rank=0.",
        )
        return
    targets, whole = lora.targets or [], lora.trained_whole or []
    yield from wrong_names("actor.lora.targets", targets, spec.lora.adaptable)
    if whole:
        yield from wrong_names("actor.lora.trained_whole", whole, spec.lora.whole)
    both = sorted(set(targets) & set(whole))
    if both:
        yield RunError(
            f"{', '.join(both)} would train twice: whole, and by adapters.",
            key="actor.lora.targets",
            value=targets,
            remedy="Name each part in actor.lora.targets or in actor.lora.trained_whole.",
        )


def betas_are_two(config: RunConfig) -> Faults:
    """AdamW has two betas."""
    if len(config.actor.betas) != 2:
        yield RunError(
            "AdamW has two betas.", key="actor.betas", value=config.actor.betas, remedy="Write actor.betas=[0.9,0.999]."
        )


def sft_batch_divides_among_ranks(config: RunConfig) -> Faults:
    """Every rank takes an equal part of a warm-start batch."""
    yield from not_multiple("sft.batch_size", config.sft.batch_size, "actor.num_workers", config.actor.num_workers)


def warm_start_warms_up(config: RunConfig) -> Faults:
    """The learning rate's warm-up ends before the warm start does."""
    if config.sft.num_steps and config.sft.lr_warmup_steps >= config.sft.num_steps:
        yield RunError(
            "The warm start would end before its learning rate is reached.",
            key="sft.lr_warmup_steps",
            value=config.sft.lr_warmup_steps,
            cause=f"sft.num_steps is {config.sft.num_steps}.",
            remedy=f"Take at most {config.sft.num_steps // 4}.",
        )


def demonstrations_are_not_evaluated(config: RunConfig) -> Faults:
    """Demonstrations take no reset seeds of evaluations, and evaluations none of certifications."""
    demos, evaluation = config.demos, config.evaluation
    first, end = EVALUATION_SEEDS.low, EVALUATION_SEEDS.high + 1
    if demos.path is None and demos.seed + demos.num_episodes > first:
        yield RunError(
            "Demonstrations would take reset seeds of evaluations.",
            key="demos.seed",
            value=demos.seed,
            cause=f"They take {demos.num_episodes} seeds, and those from {first} on are for evaluations.",
            remedy=f"Take demos.seed={max(0, int(first - demos.num_episodes))} or below.",
        )
    if evaluation.seed + evaluation.num_episodes > end:
        yield RunError(
            "Evaluations would take reset seeds of certifications.",
            key="evaluation.seed",
            value=evaluation.seed,
            cause=f"They take {evaluation.num_episodes} seeds, and those from {end} on are for rlrun.certify.",
            remedy=f"Take evaluation.seed={int(end - evaluation.num_episodes)} or below.",
        )


def chosen_demonstrations_exist(config: RunConfig) -> Faults:
    """Keys that choose from a dataset have one, and the episodes are a list or a range."""
    demos, defaults = config.demos, DemosConfig()
    if demos.path is None:
        for name in ("keys", "episodes", "only_successful"):
            if getattr(demos, name) != getattr(defaults, name):
                remedy = "Name a dataset in demos.path, or drop it."
                yield no_effect(f"demos.{name}", getattr(demos, name), "demos.path is null", remedy)
    episodes = demos.episodes
    is_range = isinstance(episodes, str) and re.fullmatch(r"\d{0,9}:\d{0,9}", episodes)
    is_list = isinstance(episodes, list) and episodes and all(type(one) is int and one >= 0 for one in episodes)
    if episodes is not None and not is_range and not is_list:
        yield RunError(
            "The episodes of a dataset are a list of numbers, or a range.",
            key="demos.episodes",
            value=episodes,
            cause="YAML reads 10:50 without quotes as the number 650." if isinstance(episodes, int) else None,
            remedy="Write [0, 3, 4], or '0:50' for the first fifty.",
        )


def schedules_fall(config: RunConfig) -> Faults:
    """A lowest learning rate has a schedule that falls to it."""
    actor = config.actor
    if actor.min_lr_ratio and actor.lr_schedule is LrSchedule.constant:
        because = "actor.lr_schedule=constant keeps the learning rates"
        yield no_effect("actor.min_lr_ratio", actor.min_lr_ratio, because, "Take linear or cosine, or drop it.")


def clipped_returns_have_a_critic(config: RunConfig) -> Faults:
    """Returns are clipped only where a critic learns them."""
    bound, algorithm = config.algorithm.clip_returns, ALGORITHMS.get(config.algorithm.name)
    if bound is not None and not getattr(algorithm, "has_critic", True):
        because = f"algorithm.name={config.algorithm.name} has no critic"
        yield no_effect("algorithm.clip_returns", bound, because, "Drop it, or clip advantages.")


def profiled_steps_exist(config: RunConfig) -> Faults:
    """The steps to profile are steps of the run."""
    late = [step for step in config.logging.profile_steps if step >= config.num_steps]
    if late:
        yield RunError(
            f"The run has no step {late[0]} to profile.",
            key="logging.profile_steps",
            value=config.logging.profile_steps,
            cause=f"Steps count from 0 and num_steps is {config.num_steps}.",
            remedy="Take smaller ones, or more steps.",
        )


def recorded_edges_exist(config: RunConfig) -> Faults:
    """The messages to record are known by name."""
    yield from wrong_names("record.edges", config.record.edges, EDGES)


def recorded_steps_exist(config: RunConfig) -> Faults:
    """The steps to record are steps of the run."""
    if config.record.num_steps and config.record.first_step >= config.num_steps:
        yield RunError(
            f"The run has no step {config.record.first_step} to record.",
            key="record.first_step",
            value=config.record.first_step,
            cause=f"Steps count from 0 and num_steps is {config.num_steps}.",
            remedy="Take a smaller one, or more steps.",
        )
    if config.record.num_steps and config.record.first_step and config.algorithm.carry_episodes:
        yield RunError(
            "A recording of carried episodes begins with the first step.",
            key="record.first_step",
            value=config.record.first_step,
            cause="algorithm.carry_episodes=true: simulators could not be brought to where an episode was.",
            remedy="Take 0, or algorithm.carry_episodes=false.",
        )


def replays_are_not_recorded(config: RunConfig) -> Faults:
    """A replay cannot be recorded, since it has only one half of the messages."""
    if config.replay.path is not None and config.record.num_steps:
        because = "a replay is not recorded"
        yield no_effect("record.num_steps", config.record.num_steps, because, "Take 0, or leave out replay.")


def sglang_settings_have_an_engine(config: RunConfig) -> Faults:
    """Settings of SGLang have an effect only with its backend."""
    own, default = config.rollout.sglang, SglangConfig()
    if config.rollout.backend is RolloutBackendKind.sglang:
        return
    for name in ("python", "attention_backend", "mem_fraction_static", "server_args"):
        if getattr(own, name) != getattr(default, name):
            because = "rollout.backend is hf"
            yield no_effect(f"rollout.sglang.{name}", getattr(own, name), because, "Add rollout=sglang.")


def servers_serve_robots(config: RunConfig) -> Faults:
    """BEHAVIOR's protocol describes the R1Pro, vla-eval's any world; a policy server replaces a checkpoint."""
    server, timeout_s = config.evaluation.server, config.evaluation.server_timeout_s
    if server is None:
        if timeout_s != EvaluationConfig().server_timeout_s:
            yield no_effect("evaluation.server_timeout_s", timeout_s, "evaluation.server is null", "Drop it.")
        return
    if not re.fullmatch(r"wss?://[^/\s]+(/\S*)?", server):
        yield RunError(
            f"'{server}' is no address of a policy server.",
            key="evaluation.server",
            value=server,
            remedy=f"Write ws://host:port, or ws://host:port{VLA_EVAL_PATH} for a model server of vla-eval.",
        )
    if config.evaluation.checkpoint is not None:
        yield no_effect(
            "evaluation.checkpoint", config.evaluation.checkpoint, "evaluation.server brings the policy", "Drop one."
        )
    if not simulator_spec(config.env).is_r1pro and not config.evaluation.is_server_of_vla_eval:
        yield RunError(
            f"A policy server of BEHAVIOR's protocol controls an R1Pro, which {config.env.simulator} has not.",
            key="evaluation.server",
            value=server,
            remedy=f"Write ws://host:port{VLA_EVAL_PATH} for a model server of vla-eval, evaluate a checkpoint, or "
            "take a simulator with an R1Pro.",
        )


def origins_are_origins(config: RunConfig) -> Faults:
    """The origins of web pages are written as browsers send them."""
    for origin in config.serve.allowed_origins:
        if not re.fullmatch(r"https?://[^/\s]+", origin):
            yield RunError(
                f"'{origin}' is no origin of a web page.",
                key="serve.allowed_origins",
                value=config.serve.allowed_origins,
                remedy="Write scheme, host and, if it is not 80 or 443, port: http://robot.example:3000.",
            )


def paths_exist(config: RunConfig) -> Faults:
    """All files that training reads exist."""
    yield from _missing(
        config,
        {
            "policy.path": config.policy.path,
            "demos.path": config.demos.path,
            "replay.path": config.replay.path,
            "checkpoint.resume": None if config.checkpoint.resume == "auto" else config.checkpoint.resume,
        },
    )


def evaluated_policy_exists(config: RunConfig) -> Faults:
    """The policy to evaluate or to serve exists."""
    yield from _missing(config, {"evaluation.checkpoint": config.evaluation.checkpoint})


_POLICY = "a folder with config.json and weights: runs/NAME/TIME/policy of a run, or a downloaded checkpoint"
INPUTS = {  # key of a path -> what it must name
    "policy.path": f"Name a policy, {_POLICY}; null starts with a new policy.",
    "demos.path": "Name a LeRobot dataset (docs/howto/demonstrations.md); null records the expert's episodes.",
    "replay.path": "Name the folder of a run with record.num_steps above 0.",
    "checkpoint.resume": "Name the checkpoints folder of a run, or one checkpoint in it.",
    "evaluation.checkpoint": f"Name a run folder, a checkpoint, or {_POLICY}.",
}


def _missing(config: RunConfig, inputs: dict[str, str | None]) -> Faults:
    """Yield a fault for each missing path. With an inventory file none, since other machines read them."""
    if config.placement.inventory is not None:
        return
    for key, path in inputs.items():
        if path is not None and not os.path.exists(path):  # of names that are too long, Path.exists raises
            yield RunError(
                f"'{path}' does not exist.",
                key=key,
                value=path,
                cause=f"Nothing lies at {Path(path).absolute()}.",
                remedy=INPUTS[key] + _near(Path(path)),
                exit_status=ExitStatus.bad_input,
            )


def name_is_below_runs(config: RunConfig) -> Faults:
    """The name of the run is that of a folder below runs/."""
    parts = Path(config.name).parts
    longest = max((len(part.encode(errors="replace")) for part in parts), default=0)
    if longest > LONGEST_NAME:
        yield RunError(
            f"The name of the run has a part of {longest} bytes.",
            key="name",
            value=f"{config.name[:60]}…",
            cause=f"File systems take names of {LONGEST_NAME} bytes, and the run folder is runs/<name>/<time>.",
            remedy="Take a shorter name.",
        )
        return
    if not parts or ".." in parts or Path(config.name).is_absolute() or not config.name.isprintable():
        yield RunError(
            "The name of the run is not that of a folder below runs/.",
            key="name",
            value=ascii(config.name),
            cause="The run folder is runs/<name>/<time>, and the name stands in reports and trackers.",
            remedy="Take letters and digits, or a/b for a folder in a folder; output_dir takes any folder.",
        )


def output_is_a_folder(config: RunConfig) -> Faults:
    """The run folder is not a file, and its names are not longer than file systems take."""
    for key, path in {"output_dir": config.output_dir, "cache_dir": config.cache_dir}.items():
        longest = max((len(part.encode(errors="replace")) for part in Path(path or "").parts), default=0)
        if longest > LONGEST_NAME:
            yield RunError(
                f"'{key}' has a name of {longest} bytes.",
                key=key,
                value=f"{str(path)[:60]}…",
                cause=f"File systems take names of {LONGEST_NAME} bytes.",
                remedy="Take shorter names.",
            )
    if config.output_dir is not None and os.path.exists(config.output_dir) and not os.path.isdir(config.output_dir):
        yield RunError(
            f"'{config.output_dir}' is a file, not a folder.",
            key="output_dir",
            value=config.output_dir,
            remedy="Name a folder, or leave it out: runs/<name>/<time> is made.",
        )


def algorithm_learns_from_the_choices(config: RunConfig) -> Faults:
    """Some policies sample so that only one algorithm can learn from it."""
    kind, name = config.policy.kind, config.algorithm.name
    only = POLICIES.get(kind).learned_by(config)
    if only is not None and name != only:
        yield RunError(
            f"{name} cannot learn from what this policy samples.",
            key="algorithm.name",
            value=name,
            cause=f"policy.{kind} is set to a sampling that has no log-probabilities of actions, for {only} alone.",
            remedy=f"Set algorithm.name={only}, or another policy.{kind}.sampling.",
        )


def filtered_groups_are_whole(config: RunConfig) -> Faults:
    """Groups can be filtered if the algorithm compares whole episodes, and each group is simulated by one worker."""
    algorithm = config.algorithm
    if not algorithm.filter_groups.enable:
        return
    rule = ALGORITHMS.get(algorithm.name).rollout(algorithm)
    if not rule.one_episode or rule.group_size < 2:
        yield RunError(
            f"{algorithm.name} compares no episodes of a group, so no group can lack signal.",
            key="algorithm.filter_groups.enable",
            value=True,
            cause="Its groups have a single env." if rule.one_episode else "It learns from single chunk steps.",
            remedy="Drop it, or take an algorithm with groups, such as algorithm.name=grpo.",
        )
        return
    per_worker = config.env.num_envs // config.env.num_workers
    if per_worker % rule.group_size:
        yield RunError(
            f"Groups of {rule.group_size} envs would be cut across env workers of {per_worker} envs.",
            key="env.num_workers",
            value=config.env.num_workers,
            cause="An env worker sees all episodes of a group, to collect those without signal again "
            f"(algorithm.filter_groups.enable): {per_worker} envs are no multiple of {rule.group_size}.",
            remedy=f"Take env.num_workers={nearest_divisor(config.env.num_envs // rule.group_size, 1)}, or more envs.",
        )


CHECKS: tuple[Check, ...] = (
    envs_divide_among_workers,
    envs_divide_among_ranks,
    rollout_workers_have_work,
    batch_divides_samples,
    batch_divides_among_ranks,
    micro_batches_fill_a_rank,
    cameras_exist,
    interpreter_has_a_process,
    attention_has_a_policy,
    demonstrations_have_an_expert,
    imitation_beside_has_an_effect,
    backend_serves_the_policy,
    local_cluster_has_one_rank,
    transport_needs_processes,
    local_cluster_has_no_address,
    workers_know_their_head,
    hybrid_groups_divide_ranks,
    frozen_weights_are_on_the_device,
    adapters_have_layers,
    betas_are_two,
    sft_batch_divides_among_ranks,
    warm_start_warms_up,
    demonstrations_are_not_evaluated,
    chosen_demonstrations_exist,
    schedules_fall,
    clipped_returns_have_a_critic,
    algorithm_learns_from_the_choices,
    filtered_groups_are_whole,
    profiled_steps_exist,
    recorded_edges_exist,
    recorded_steps_exist,
    replays_are_not_recorded,
    sglang_settings_have_an_engine,
    servers_serve_robots,
    origins_are_origins,
    paths_exist,
    evaluated_policy_exists,
    name_is_below_runs,
    output_is_a_folder,
)
OF_INPUTS = frozenset(  # checks that a program skips which reads none of a run's inputs
    {paths_exist, evaluated_policy_exists, demonstrations_have_an_expert}
)
OF_TRAINING = frozenset(  # checks that a program without actor workers skips
    {
        envs_divide_among_ranks,
        batch_divides_samples,
        batch_divides_among_ranks,
        micro_batches_fill_a_rank,
        demonstrations_have_an_expert,
        imitation_beside_has_an_effect,
        local_cluster_has_one_rank,
        transport_needs_processes,
        hybrid_groups_divide_ranks,
        frozen_weights_are_on_the_device,
        adapters_have_layers,
        betas_are_two,
        sft_batch_divides_among_ranks,
        warm_start_warms_up,
        algorithm_learns_from_the_choices,
        filtered_groups_are_whole,
        profiled_steps_exist,
        recorded_edges_exist,
        recorded_steps_exist,
        replays_are_not_recorded,
        paths_exist,
    }
)


def _near(path: Path) -> str:
    """Return a sentence on similar names in the nearest existing parent folder; "" without one."""
    folder = next(parent for parent in path.absolute().parents if os.path.isdir(parent))
    missing = path.absolute().relative_to(folder).parts[0]
    close = difflib.get_close_matches(missing, [entry.name for entry in folder.iterdir()], n=3)
    return f" Similar in {folder}: {', '.join(close)}." if close else ""
