"""Specifications of algorithms: the type, and settings and specification of rlrun's on-policy ones.

Those of off-policy algorithms are in `off_policy_spec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, cast

from rlrun.config.faults import nearest_divisor
from rlrun.config.registry import ALGORITHMS, POLICIES, no_faults
from rlrun.config.schema import Aggregation, AlgorithmConfig, RunConfig
from rlrun.config.sections import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Section,
    bounded,
)
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm, OffPolicyAlgorithm


OF_RATIOS = ("ratio_level", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "behavior_weight_cap")
LR_WARMUP_STEPS = 20  # optimizer steps


@dataclass(frozen=True)
class RolloutRule:
    """How env workers collect for an algorithm.

    Example: GRPO with groups of 8: RolloutRule(needs_values=False, one_episode=True, group_size=8).
    """

    needs_values: bool = True  # values of every observation, and of the last one of a truncated episode
    needs_next_proprio: bool = False  # proprioception after every chunk step, of ended episodes, too
    one_episode: bool = False  # a row has one episode per rollout epoch, and then rests
    group_size: int = 1  # consecutive envs whose episodes have the same reset seed

    def __post_init__(self) -> None:
        if self.needs_values and self.one_episode:
            raise ValueError("values are asked of rows that all act: a rule has needs_values or one_episode, not both")


@dataclass(frozen=True)
class AlgorithmSpec:
    """One algorithm. A package adds its own by an entry point of the group `rlrun.algorithms`."""

    name: str
    algorithm: str  # "module:Class" of an Algorithm or OffPolicyAlgorithm, which imports torch
    rollout: Callable[[AlgorithmConfig], RolloutRule] = lambda config: RolloutRule()
    section: type[Section] | None = None  # keys of algorithm.<name>; None: no keys of its own
    is_on_policy: bool = True  # the class is an Algorithm; False: an OffPolicyAlgorithm
    has_critic: bool = True  # False: no value head is trained, and the optimizer keeps no state for it
    unread: tuple[str, ...] = ()  # keys of `algorithm` that it does not read, although all algorithms share them
    lr_warmup_steps: int = 0  # actor.lr_warmup_steps by default, for a policy that is trained already
    needs_demonstrations: bool = False  # it learns from the transitions of `demos` beside those that are collected
    check: Callable[[RunConfig], Iterator[RunError]] = no_faults  # checks beyond the ranges of single keys
    # Host memory that each actor rank keeps between steps, such as a replay buffer; the integer: bytes of a choice in a
    # trajectory.
    kept_bytes: Callable[[RunConfig, int], int] = lambda config, choice_bytes: 0
    # Whether `acting_share` is ever a number, so that the learner keeps the trained weights twice.
    has_slow_policy: Callable[[AlgorithmConfig], bool] = lambda config: False
    # Optimizer steps of small networks, such as critics, in a training step, for the plan's estimate; None: an update
    # passes the policy over all chunk steps, `algorithm.update_epochs` times.
    small_steps: Callable[[RunConfig], float] | None = None

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Paths of the keys that change nothing under this algorithm, the critic's rate included if it has none."""
        of_critic = () if self.has_critic else ("actor.value_lr",)
        return (*(f"algorithm.{key}" for key in self.unread), *of_critic)

    def make(self, config: AlgorithmConfig) -> Algorithm | OffPolicyAlgorithm:
        """Import the class, and return a new instance. Raises RunError if it cannot be imported."""
        return cast("Algorithm | OffPolicyAlgorithm", ALGORITHMS.part(self, "algorithm")(config))


def num_epochs(config: AlgorithmConfig) -> int:
    """Return the number of times that an update learns from a chunk step: update_epochs; 1 if it is off-policy."""
    spec: AlgorithmSpec = ALGORITHMS.get(config.name)
    return config.update_epochs if spec.is_on_policy else 1


def rollout_rule(config: AlgorithmConfig) -> RolloutRule:
    """Return the rollout rule of the configured algorithm."""
    spec: AlgorithmSpec = ALGORITHMS.get(config.name)
    return spec.rollout(config)


# --- the algorithms of rlrun ------------------------------------------------------------------


@dataclass
class PPOConfig(Section):
    """Settings of algorithm.name=ppo."""

    gae_lambda: float = bounded(0.95, SHARE)
    normalize_advantages: bool = True  # to mean 0 and standard deviation 1, over all ranks
    critic_warmup_steps: int = bounded(0, NOT_NEGATIVE)  # first training steps, in which only the value head trains
    value_clip: float = bounded(0.2, POSITIVE)
    huber_delta: float = bounded(10.0, POSITIVE)
    value_coef: float = bounded(0.5, NOT_NEGATIVE)


class Credit(Enum):
    step = "step"  # the discounted return from a chunk step on, against those of the group at the same time
    episode = "episode"  # the return of the whole episode, as published; algorithm.gamma must be 1


@dataclass
class GroupSection(Section):
    """Settings of an algorithm that compares episodes with equal starts."""

    group_size: int = bounded(1, COUNT)


@dataclass
class GRPOConfig(GroupSection):
    """Settings of algorithm.name=grpo."""

    group_size: int = bounded(8, COUNT)  # envs that share a reset seed
    credit: Credit = Credit.step  # what the advantage of a chunk step compares


@dataclass
class RlooConfig(GroupSection):
    """Settings of algorithm.name=rloo."""

    group_size: int = bounded(4, COUNT)  # envs that share a reset seed; the paper takes 2 and 4
    credit: Credit = Credit.step  # what the advantage of a chunk step compares


@dataclass
class ReinforcePlusPlusConfig(GroupSection):
    """Settings of algorithm.name=reinforce_plus_plus."""

    group_size: int = bounded(1, COUNT)  # envs that share a reset seed, whose mean return to go is a baseline; 1: none


@dataclass
class NftConfig(GroupSection):
    """Settings of algorithm.name=nft."""

    group_size: int = bounded(8, COUNT)  # envs that share a reset seed
    beta: float = bounded(1.0, POSITIVE)  # how far the two implicit velocities are from that of the policy that acted
    advantage_clip: float = bounded(5.0, POSITIVE)  # absolute advantage of an episode that is wholly good or bad
    # The share is this rate times the optimizer steps done, at most a half; 0.001: as the authors have it.
    acting_rate: float = bounded(
        0.0, NOT_NEGATIVE
    )  # growth per step of what the acting policy keeps of itself; 0: none
    adaptive_weighting: bool = True  # divide each squared error by its absolute one, as for a predicted action


def _in_groups(section: type[GroupSection]) -> Callable[[AlgorithmConfig], RolloutRule]:
    """Return the rollout rule of an algorithm that learns from whole episodes of groups."""

    def rule(config: AlgorithmConfig) -> RolloutRule:
        settings: GroupSection = config.section(section)
        return RolloutRule(needs_values=False, one_episode=True, group_size=settings.group_size)

    return rule


def _check_episodes(name: str, section: type[GroupSection], least: int) -> Callable[[RunConfig], Iterator[RunError]]:
    """Return the checks of an algorithm that learns from whole episodes of groups; each belongs to one actor rank.

    least: the smallest group.
    """
    key = f"algorithm.{name}.group_size"

    def check(config: RunConfig) -> Iterator[RunError]:
        algorithm = config.algorithm
        settings: GroupSection = algorithm.section(section)
        size = settings.group_size
        per_rank = config.env.num_envs // config.actor.num_workers
        if size < least:
            yield RunError(
                f"{algorithm.name} needs groups of at least {least} envs.",
                key=key,
                value=size,
                cause="The advantage is the return relative to the rest of the group.",
                remedy="Take 4 or 8.",
            )
        if per_rank % size:
            near = nearest_divisor(per_rank, size)
            yield RunError(
                f"Groups of {size} envs would be cut across actor ranks of {per_rank} envs.",
                key=key,
                value=size,
                cause=f"env.num_envs ({config.env.num_envs}) / actor.num_workers ({config.actor.num_workers}) "
                f"is {per_rank}, no multiple of {size}.",
                remedy=f"Take {near}, or more envs."
                if near >= least
                else f"Take env.num_envs={config.actor.num_workers * size}, or a multiple of it.",
            )
        if getattr(settings, "credit", None) is Credit.episode and algorithm.gamma != 1:
            yield RunError(
                f"algorithm.gamma has no effect on {algorithm.name} with one number for a whole episode.",
                key="algorithm.gamma",
                value=algorithm.gamma,
                cause=f"algorithm.{name}.credit=episode compares sums of rewards without a discount.",
                remedy=f"Set algorithm.gamma=1, or algorithm.{name}.credit=step.",
            )
        steps = algorithm.horizon * config.policy.num_action_chunks
        if algorithm.horizon < config.chunks_of_episode:
            yield RunError(
                f"{algorithm.name} would see episodes without their end.",
                key="algorithm.horizon",
                value=algorithm.horizon,
                cause=f"{algorithm.horizon} chunks of {config.policy.num_action_chunks} control steps are {steps}, "
                f"fewer than env.max_control_steps ({config.env.max_control_steps})"
                + (f" after env.action_delay ({config.env.action_delay})." if config.env.action_delay else "."),
                remedy=f"Take at least {config.chunks_of_episode}.",
            )
        if algorithm.carry_episodes:
            yield RunError(
                f"{algorithm.name} cannot carry episodes over.",
                key="algorithm.carry_episodes",
                value=True,
                cause="A row has one whole episode in each rollout epoch.",
                remedy="Set algorithm.carry_episodes=false, or algorithm.name=ppo.",
            )

    return check


def take_sampling(config: RunConfig, sampling: str) -> str:
    """Return the remedy of a policy that samples otherwise: a file or keys of its kind, or an algorithm for it."""
    spec = POLICIES.get(config.policy.kind)
    file = spec.shipped_as(config)
    if file is not None:
        return f"Take policy={file}_{sampling}."
    if hasattr(config.policy.sections.get(spec.name), "sampling"):
        noise = f" policy.{spec.name}.first_noise=drawn" if sampling == "nft" else ""
        return f"Set policy.{spec.name}.sampling={sampling}{noise}."
    return (
        f"Take algorithm.name=ppo, which trains policy.kind={config.policy.kind}; {sampling} needs a flow policy, "
        f"such as those of configs/policy/*_{sampling}.yaml."
    )


def _check_nft(config: RunConfig) -> Iterator[RunError]:
    yield from _check_episodes("nft", NftConfig, least=2)(config)
    kind = POLICIES.get(config.policy.kind).name
    settings = config.policy.sections.get(kind)
    sampling = getattr(settings, "sampling", None)
    noise = getattr(settings, "first_noise", None)
    if sampling is None or sampling.value != "nft":
        yield RunError(
            "NFT learns by flow matching on the actions that a flow policy chose, and this policy keeps none for it.",
            key="algorithm.name",
            value="nft",
            cause=f"policy.kind={kind}" + (f", policy.{kind}.sampling={sampling.value}" if sampling else ""),
            remedy=take_sampling(config, "nft"),
        )
    elif noise is None or noise.value != "drawn":
        yield RunError(
            "NFT would see one action for every observation.",
            key=f"policy.{kind}.first_noise",
            value=noise and noise.value,
            cause="The flow is an ODE: its actions differ only by the noise that it begins with.",
            remedy=f"Set policy.{kind}.first_noise=drawn.",
        )
    elif config.algorithm.aggregation is not Aggregation.chunk_mean_token_mean:
        yield RunError(
            "NFT would weigh chunk steps by their length: failures would repel more than successes attract.",
            key="algorithm.aggregation",
            value=config.algorithm.aggregation.name,
            cause="The chunk step in which an episode succeeds is cut short, and has fewer numbers than others.",
            remedy=f"Set algorithm.aggregation={Aggregation.chunk_mean_token_mean.name}.",
        )


PPO = AlgorithmSpec("ppo", "rlrun.algorithms.ppo:PPO", section=PPOConfig, lr_warmup_steps=LR_WARMUP_STEPS)
GRPO = AlgorithmSpec(
    "grpo",
    "rlrun.algorithms.ppo:GRPO",
    _in_groups(GRPOConfig),
    GRPOConfig,
    has_critic=False,
    lr_warmup_steps=LR_WARMUP_STEPS,
    check=_check_episodes("grpo", GRPOConfig, least=2),
)
RLOO = AlgorithmSpec(
    "rloo",
    "rlrun.algorithms.reinforce:Rloo",
    _in_groups(RlooConfig),
    RlooConfig,
    has_critic=False,
    lr_warmup_steps=LR_WARMUP_STEPS,
    check=_check_episodes("rloo", RlooConfig, least=2),
)
REINFORCE_PLUS_PLUS = AlgorithmSpec(
    "reinforce_plus_plus",
    "rlrun.algorithms.reinforce:ReinforcePlusPlus",
    _in_groups(ReinforcePlusPlusConfig),
    ReinforcePlusPlusConfig,
    has_critic=False,
    lr_warmup_steps=LR_WARMUP_STEPS,
    check=_check_episodes("reinforce_plus_plus", ReinforcePlusPlusConfig, least=1),
)
NFT = AlgorithmSpec(
    "nft",
    "rlrun.algorithms.nft:Nft",
    _in_groups(NftConfig),
    NftConfig,
    has_critic=False,
    unread=(*OF_RATIOS, "entropy_coef", "kl_kind"),
    check=_check_nft,
    has_slow_policy=lambda config: config.section(NftConfig).acting_rate > 0,
)
