"""Settings and specifications of rlrun's off-policy algorithms: DSRL, SAC and RLPD."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from rlrun.algorithms.spec import OF_RATIOS, AlgorithmSpec, RolloutRule, take_sampling
from rlrun.config.registry import POLICIES
from rlrun.config.schema import RunConfig
from rlrun.config.sections import (
    COUNT,
    FINITE,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_SHARE,
    Section,
    bounded,
)
from rlrun.config.simulator_spec import simulator_spec
from rlrun.system.errors import RunError

# what on-policy updates alone read; `global_batch_size` must still divide the chunk steps of a training step
OF_UPDATES = ("update_epochs", "minibatch_of", "aggregation", "entropy_coef", "clip_advantages", "target_kl")
UNREAD = (*OF_RATIOS, *OF_UPDATES, "kl_coef", "kl_kind")


class CriticActivation(Enum):
    gelu = "gelu"
    relu = "relu"


@dataclass
class SoftSection(Section):
    """Settings that soft actor-critics share; the policy's own are in `actor`."""

    batch_size: int = bounded(256, COUNT)  # transitions of one step, over all actor ranks
    replay_size: int = bounded(1_000_000, COUNT)  # transitions that each actor rank keeps
    num_critics: int = bounded(2, COUNT)
    hidden_sizes: list[int] = bounded([256, 256], COUNT)  # of each critic
    has_layer_norm: bool = False  # before each activation of the critics
    activation: CriticActivation = CriticActivation.relu  # of the critics
    critic_lr: float = bounded(3e-4, POSITIVE)
    tau: float = bounded(0.005, POSITIVE_SHARE)  # share of the critics that goes into their targets per step
    initial_alpha: float = bounded(1.0, POSITIVE)  # weight of the entropy at first
    alpha_lr: float = bounded(3e-4, NOT_NEGATIVE)  # 0: the weight stays
    # CleanRL counts simulator units, in which it is larger by the log of half the number's range: -1 there is -1.69
    # here where actions reach from -2 to 2
    target_entropy: float = bounded(-1.0, FINITE)  # nats per number between -1 and 1, whatever the simulator's units


@dataclass
class DsrlConfig(SoftSection):
    """Settings of soft actor-critic over the first noise."""

    num_updates: int = bounded(200, COUNT)  # steps of critics and noise actor per training step
    warmup_steps: int = bounded(2, NOT_NEGATIVE)  # training steps that only collect
    replay_size: int = bounded(50_000, COUNT)  # transitions that each actor rank keeps
    num_critics: int = bounded(2, COUNT)  # the smallest of their values is used
    has_layer_norm: bool = True  # before each activation of the critics
    activation: CriticActivation = CriticActivation.gelu  # of the critics
    initial_alpha: float = bounded(0.01, POSITIVE)  # weight of the entropy at first
    alpha_lr: float = bounded(1e-3, NOT_NEGATIVE)  # 0: the weight stays
    target_entropy: float = bounded(-0.5, FINITE)  # nats per number of the noise over its bound, between -1 and 1


@dataclass
class SacConfig(SoftSection):
    """Settings of algorithm.name=sac; the defaults are those of arXiv 1812.05905."""

    num_critics: int = bounded(2, COUNT)  # the smallest of their values is used
    update_ratio: float = bounded(1.0, POSITIVE)  # steps of the critics per collected transition
    critic_steps: int = bounded(1, COUNT)  # steps of the critics per step of the policy
    warmup: int = bounded(5000, NOT_NEGATIVE)  # transitions, over all actor ranks, after which learning begins


@dataclass
class RlpdConfig(SacConfig):
    """Settings of algorithm.name=rlpd; the defaults are those of arXiv 2302.02948 for locomotion."""

    batch_size: int = bounded(256, COUNT)  # transitions of one step, over all actor ranks; half of them demonstrated
    num_critics: int = bounded(10, COUNT)  # the policy learns their mean
    num_target_critics: int = bounded(2, COUNT)  # drawn for each step, the smallest of whose values is the target
    has_layer_norm: bool = True  # before each activation of the critics
    update_ratio: float = bounded(20.0, POSITIVE)  # steps of the critics per collected transition
    critic_steps: int = bounded(20, COUNT)  # steps of the critics per step of the policy
    is_entropy_target: bool = True  # the entropy of what follows counts in the targets
    target_entropy: float = bounded(-0.5, FINITE)  # nats per number between -1 and 1, whatever the simulator's units


def _check_steerable(config: RunConfig) -> Iterator[RunError]:
    """Only a policy whose first noise is chosen can be steered."""
    kind = POLICIES.get(config.policy.kind).name
    sampling = getattr(config.policy.sections.get(kind), "sampling", None)
    if sampling is None or sampling.value != "dsrl":
        yield RunError(
            "DSRL chooses the noise that a flow policy begins with, and this policy chooses none.",
            key="algorithm.name",
            value="dsrl",
            cause=f"policy.kind={kind}" + (f", policy.{kind}.sampling={sampling.value}" if sampling else ""),
            remedy=take_sampling(config, "dsrl"),
        )


def _check_squashed(config: RunConfig) -> Iterator[RunError]:
    """Only a policy of states, whose actions are a differentiable function of noise within their limits, can learn."""
    name = config.algorithm.name
    kind = POLICIES.get(config.policy.kind).name
    section = config.policy.sections.get(kind)
    distribution = getattr(section, "distribution", None)
    if "images" in POLICIES.get(config.policy.kind).observes or not hasattr(section, "distribution"):
        cause = f"policy.kind={kind} chooses tokens, or steps of a flow, or observes pictures"
        remedy = _trained_otherwise(config, hasattr(section, "sampling"))
    elif getattr(distribution, "value", None) != "squashed":
        cause = f"policy.{kind}.distribution={getattr(distribution, 'value', distribution)}"
        remedy = f"Take policy.{kind}.distribution=squashed."
    else:
        return
    yield RunError(
        f"{name} moves actions along the gradients of critics of states, and this policy has no such actions.",
        key="algorithm.name",
        value=name,
        cause=cause,
        remedy=remedy,
    )


def _trained_otherwise(config: RunConfig, is_flow: bool) -> str:
    """Return the remedy of a policy that critics of states cannot train: other algorithms for it come first."""
    steered = f" To learn off-policy, steer it: {take_sampling(config, 'dsrl')}" if is_flow else ""
    states = "policy.kind=mlp policy.mlp.distribution=squashed"
    return f"Take algorithm.name=ppo, which trains this policy.{steered} In a world of states, take {states}."


def _check_demonstrated(config: RunConfig) -> Iterator[RunError]:
    """There are demonstrations, and their recorded actions are the executed ones."""
    yield from _check_squashed(config)
    settings = config.algorithm.section(RlpdConfig)
    demos = config.demos
    if settings.num_target_critics > settings.num_critics:
        yield RunError(
            "A target cannot be drawn from more critics than there are.",
            key="algorithm.rlpd.num_target_critics",
            value=settings.num_target_critics,
            cause=f"algorithm.rlpd.num_critics is {settings.num_critics}.",
            remedy="Take 1 or 2.",
        )
    if demos.path is not None:
        return
    if not simulator_spec(config.env).world.has_expert(config.env):
        yield RunError(
            "rlpd learns from demonstrations, and there are none.",
            key="demos.path",
            value=None,
            cause=f"env.simulator={config.env.simulator} has no expert that could record them",
            remedy="Name a LeRobot dataset with rewards in demos.path, or the world's expert if it takes one, or set "
            "algorithm.name=sac.",
        )
    if demos.noise:
        yield RunError(
            "rlpd would learn from actions that were not executed.",
            key="demos.noise",
            value=demos.noise,
            cause="Noise is put on the expert's actions, and the dataset holds them without it.",
            remedy="Set demos.noise=0.",
        )


def _kept_by_dsrl(config: RunConfig, choice_bytes: int) -> int:
    """Return the bytes of the replay buffer: a transition has two choices, of this chunk step and of the next."""
    return 2 * choice_bytes * config.algorithm.section(DsrlConfig).replay_size


def _kept_of_states(section: type[SacConfig]) -> Callable[[RunConfig, int], int]:
    """Return the counter of bytes of an algorithm that keeps states, and demonstrations if there are any."""

    def kept_bytes(config: RunConfig, choice_bytes: int) -> int:
        settings = config.algorithm.section(section)
        num_rows = settings.replay_size
        if section is RlpdConfig and config.demos.path is None:
            num_rows += config.demos.num_episodes * config.env.max_control_steps
        num_proprio = simulator_spec(config.env).world.planned_spaces(config.env).num_proprio
        return num_rows * (2 * 4 * num_proprio + choice_bytes + 2 * 4)

    return kept_bytes


def _steps_of_dsrl(config: RunConfig) -> float:
    return 2 * config.algorithm.section(DsrlConfig).num_updates


def _steps_of_states(section: type[SacConfig]) -> Callable[[RunConfig], float]:
    """Return the counter of steps of an algorithm that takes some for each transition."""

    def small_steps(config: RunConfig) -> float:
        settings = config.algorithm.section(section)
        return config.samples_per_step * settings.update_ratio * (1 + 1 / settings.critic_steps)

    return small_steps


DSRL = AlgorithmSpec(
    "dsrl",
    "rlrun.algorithms.dsrl:Dsrl",
    lambda config: RolloutRule(needs_values=False),
    DsrlConfig,
    is_on_policy=False,
    has_critic=False,
    unread=UNREAD,
    check=_check_steerable,
    kept_bytes=_kept_by_dsrl,
    small_steps=_steps_of_dsrl,
)
SAC = AlgorithmSpec(
    "sac",
    "rlrun.algorithms.sac:Sac",
    lambda config: RolloutRule(needs_values=False, needs_next_proprio=True),
    SacConfig,
    is_on_policy=False,
    has_critic=False,
    unread=UNREAD,
    check=_check_squashed,
    kept_bytes=_kept_of_states(SacConfig),
    small_steps=_steps_of_states(SacConfig),
)
RLPD = AlgorithmSpec(
    "rlpd",
    "rlrun.algorithms.rlpd:Rlpd",
    lambda config: RolloutRule(needs_values=False, needs_next_proprio=True),
    RlpdConfig,
    is_on_policy=False,
    has_critic=False,
    unread=UNREAD,
    needs_demonstrations=True,
    check=_check_demonstrated,
    kept_bytes=_kept_of_states(RlpdConfig),
    small_steps=_steps_of_states(RlpdConfig),
)
