"""Checks between keys of learning: batches, algorithms, the actor, its policy, and demonstrations."""

from __future__ import annotations

import re

from rlrun.config.faults import Faults, nearest_divisor, no_effect, not_multiple, wrong_names
from rlrun.config.registry import ALGORITHMS, POLICIES
from rlrun.config.schema import (
    EVALUATION_SEEDS,
    AttentionKernel,
    DemosConfig,
    KlKind,
    LrSchedule,
    MinibatchOf,
    Precision,
    RolloutBackendKind,
    RunConfig,
    ShardingStrategy,
)
from rlrun.config.simulator_spec import simulator_spec
from rlrun.system.errors import RunError


def envs_divide_among_ranks(config: RunConfig) -> Faults:
    """All actor ranks own the same number of envs."""
    yield from not_multiple("env.num_envs", config.env.num_envs, "actor.num_workers", config.actor.num_workers)


def penalties_have_an_effect(config: RunConfig) -> Faults:
    """The KL's estimate has a gradient towards the first policy; an entropy that is fixed has none."""
    algorithm = config.algorithm
    if not ALGORITHMS.get(algorithm.name).is_on_policy:
        return
    section = config.policy.sections.get(POLICIES.get(config.policy.kind).name)
    is_fixed = getattr(getattr(section, "sampling", None), "value", None) == "flow_sde"
    if is_fixed and algorithm.entropy_coef:
        why = "flow_sde has a fixed deviation, and so a fixed entropy"
        yield no_effect("algorithm.entropy_coef", algorithm.entropy_coef, why, "Set it to 0, or take flow_noise.")
    elif algorithm.kl_coef and algorithm.kl_kind is KlKind.k1 and not is_fixed:
        why = "the mean of its gradient is 0, whatever the first policy is"
        yield no_effect("algorithm.kl_kind", "k1", why, "Take k2, k3, abs or low_var_kl.")


def late_episodes_can_end(config: RunConfig) -> Faults:
    """An episode that actions reach late ends within a rollout epoch, or goes on in the next one."""
    algorithm = config.algorithm
    without_delay = -(-config.env.max_control_steps // config.policy.num_action_chunks)
    has_whole = ALGORITHMS.get(algorithm.name).rollout(algorithm).one_episode  # which checks its horizon itself
    if has_whole or algorithm.carry_episodes or not without_delay <= algorithm.horizon < config.chunks_of_episode:
        return
    yield RunError(
        "No episode of the longest length would end: its first chunk step is shortened by env.action_delay.",
        key="algorithm.horizon",
        value=algorithm.horizon,
        cause=f"{config.env.max_control_steps} control steps (env.max_control_steps) that begin "
        f"{config.env.action_delay} late (env.action_delay) take {config.chunks_of_episode} chunks of "
        f"{config.policy.num_action_chunks}.",
        remedy=f"Take algorithm.horizon={config.chunks_of_episode}, or algorithm.carry_episodes=true where the "
        "algorithm can.",
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


def minibatches_hold_whole_episodes(config: RunConfig) -> Faults:
    """Minibatches of episodes need an algorithm that takes whole ones; every rank has as many of them in each."""
    algorithm = config.algorithm
    if algorithm.minibatch_of is not MinibatchOf.episodes:
        return
    if not ALGORITHMS.get(algorithm.name).rollout(algorithm).one_episode:
        yield RunError(
            f"{algorithm.name} learns from chunk steps, not from whole episodes.",
            key="algorithm.minibatch_of",
            value="episodes",
            cause="A row may have several episodes in a rollout epoch, or a part of one.",
            remedy="Set algorithm.minibatch_of=chunk_steps, or an algorithm of whole episodes, such as "
            "algorithm.name=grpo.",
        )
        return
    ranks = max(1, config.actor.num_workers)
    of_ranks = algorithm.horizon * ranks
    if algorithm.global_batch_size % of_ranks:
        num_episodes = config.env.num_envs * algorithm.rollout_epochs // ranks
        near = nearest_divisor(max(1, num_episodes), max(1, algorithm.global_batch_size // of_ranks))
        yield RunError(
            f"{algorithm.global_batch_size} chunk steps are no whole number of episodes on each actor rank.",
            key="algorithm.global_batch_size",
            value=algorithm.global_batch_size,
            cause="algorithm.minibatch_of=episodes: it must be a multiple of algorithm.horizon "
            f"({algorithm.horizon}), an episode's chunk steps at full length, x actor.num_workers ({ranks}).",
            remedy=f"Take {near * of_ranks}, or algorithm.minibatch_of=chunk_steps.",
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
            cause=f"{' and '.join(f'{key}=fp32' for key in exact)}.",
            remedy=f"Set {' '.join(f'{key}=bf16' for key in exact)}, or policy.attention=sdpa.",
        )


def demonstrations_have_an_expert(config: RunConfig) -> Faults:
    """A new policy that starts from demonstrations needs a dataset, or a simulator with an expert."""
    others = (config.placement.inventory, config.evaluation.checkpoint, config.evaluation.server)
    is_run = all(one is None for one in others)  # a plan needs no policy
    simulator = simulator_spec(config.env)
    if is_run and not simulator.world.has_expert(config.env) and _needs_demonstrations(config):
        takes_expert = hasattr(config.env.sections.get(simulator.name), "expert")
        expert = f", name an expert in env.{simulator.name}.expert" if takes_expert else ""
        from_scratch = [spec.name for spec in POLICIES.installed() if not spec.needs_demonstrations]
        yield RunError(
            f"A new policy needs demonstrations, and {config.env.simulator} has no expert to make them.",
            key="policy.path",
            value="null",
            cause="demos.path is null, and so is policy.path or algorithm.imitation_coef above 0.",
            remedy=f"Give policy.path (a checkpoint) or demos.path (demonstrations as a LeRobot dataset){expert}, or "
            f"take a policy that begins from scratch: policy.kind={' or '.join(from_scratch)}.",
        )


def _needs_demonstrations(config: RunConfig) -> bool:
    is_imitated = config.policy.path is None or config.algorithm.imitation_coef > 0
    return POLICIES.get(config.policy.kind).needs_demonstrations and is_imitated and config.demos.path is None


def imitation_beside_has_an_effect(config: RunConfig) -> Faults:
    """Imitation beside reinforcement learning needs a policy that imitates, and an on-policy algorithm."""
    key = "algorithm.imitation_coef"
    value = config.algorithm.imitation_coef
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
    targets = lora.targets or []
    whole = lora.trained_whole or []
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
    demos = config.demos
    evaluation = config.evaluation
    first = EVALUATION_SEEDS.low
    end = EVALUATION_SEEDS.high + 1
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
    demos = config.demos
    defaults = DemosConfig()
    if demos.path is None:
        for name in ("keys", "episodes", "only_successful", "time_limit", "fps"):
            if getattr(demos, name) != getattr(defaults, name):
                remedy = "Name a dataset in demos.path, or drop it."
                yield no_effect(f"demos.{name}", getattr(demos, name), "demos.path is null", remedy)
    episodes = demos.episodes
    is_range = isinstance(episodes, str) and re.fullmatch(r"\d{0,9}:\d{0,9}", episodes)
    is_list = isinstance(episodes, list) and episodes and all(type(index) is int and index >= 0 for index in episodes)
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
    bound = config.algorithm.clip_returns
    algorithm = ALGORITHMS.get(config.algorithm.name)
    if bound is not None and not getattr(algorithm, "has_critic", True):
        because = f"algorithm.name={config.algorithm.name} has no critic"
        yield no_effect("algorithm.clip_returns", bound, because, "Drop it, or clip advantages.")


def algorithm_learns_from_the_choices(config: RunConfig) -> Faults:
    """Some policies sample so that only one algorithm can learn from it."""
    kind = config.policy.kind
    name = config.algorithm.name
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
    num_groups = config.env.num_envs // rule.group_size
    if per_worker % rule.group_size:
        num_workers = nearest_divisor(num_groups, config.env.num_workers) if num_groups else None
        yield RunError(
            f"Groups of {rule.group_size} envs would be cut across env workers of {per_worker} envs.",
            key="env.num_workers",
            value=config.env.num_workers,
            cause="An env worker sees all episodes of a group, to collect those without signal again "
            f"(algorithm.filter_groups.enable): {per_worker} envs are no multiple of {rule.group_size}.",
            remedy=f"Take env.num_workers={num_workers}, or more envs."
            if num_workers
            else f"Take env.num_envs={config.env.num_workers * rule.group_size}, or smaller groups.",
        )
