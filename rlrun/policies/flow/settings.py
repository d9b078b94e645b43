"""The keys that every kind of flow policy has in its section."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rlrun.config.sections import COUNT, POSITIVE, Section, bounded

NOISE_SIZES = (128, 64)  # hidden layers of the head of learned noise: pi-RL's


class Trains(Enum):
    """What of a policy an actor trains."""

    everything = "everything"
    expert = "expert"  # and the heads; the prefix stays as it is
    heads = "heads"  # the network stays as it is


class Sampling(Enum):
    """How actions are drawn and judged, see docs/policies.md."""

    flow_sde = "flow_sde"  # one random step, whose deviation depends on the step only
    flow_noise = "flow_noise"  # every step is random, with a learned deviation
    dsrl = "dsrl"  # no step is random: a learned actor chooses the noise that the flow begins with


class FirstNoise(Enum):
    """The noise that the flow begins with, if no noise actor chooses it."""

    drawn = "drawn"  # standard normal numbers, drawn for every chunk
    fixed = "fixed"  # standard normal numbers that never change


class CriticInput(Enum):
    """What the critic reads."""

    prefix = "prefix"  # mean and last token of the VLM's output
    expert = "expert"  # mean of the expert's action tokens, in a pass of their own at the mean of the first noise


@dataclass(frozen=True)
class Steering:
    """How DSRL chooses the first noise."""

    bound: float  # of its numbers
    hidden_sizes: list[int]  # of the noise actor


@dataclass
class FlowSettings(Section):
    """Settings of sampling, of what trains, and of the size of a new policy."""

    num_flow_steps: int = bounded(4, COUNT)  # K, Euler steps from noise to actions, in rollout and update alike
    sampling: Sampling = Sampling.flow_sde
    first_noise: FirstNoise = FirstNoise.drawn  # of Flow-SDE and Flow-Noise
    noise_level: float = bounded(0.5, POSITIVE)  # of Flow-SDE: the deviation of the random step is proportional to it
    noise_range: list[float] = bounded([0.08, 0.16], POSITIVE)  # of Flow-Noise: deviations, low and high
    steering_bound: float = bounded(1.5, POSITIVE)  # of DSRL: the first noise lies between -bound and bound
    steering_hidden_sizes: list[int] = bounded([256, 256], COUNT)  # of DSRL: layers of the noise actor
    critic_input: CriticInput = CriticInput.prefix
    critic_detached: bool = False  # whether the critic's loss stops at what it reads, and trains its own layers only
    # The VLM then stays as it is, and is computed without gradients.
    train_expert_only: bool | None = None  # after imitation; None: true with policy.path, else false
    tokenizer_path: str | None = None  # tokenizer.json of the VLM, for a folder without one, as LeRobot writes them
    # Sizes of a new policy; each kind adds its own.
    patch_size: int = bounded(16, COUNT)
    vision_hidden_size: int = bounded(96, COUNT)
    vision_num_layers: int = bounded(3, COUNT)
    vision_num_heads: int = bounded(4, COUNT)
    llm_hidden_size: int = bounded(96, COUNT)
    llm_intermediate_size: int = bounded(256, COUNT)
    llm_num_layers: int = bounded(4, COUNT)


def learned_range(own: FlowSettings) -> tuple[float, float] | None:
    """Return the range of learned noise; None: it is not learned."""
    low, high = own.noise_range
    return (low, high) if own.sampling is Sampling.flow_noise else None


def steering(own: FlowSettings) -> Steering | None:
    """Return how the first noise is chosen; None: it is drawn."""
    if own.sampling is not Sampling.dsrl:
        return None
    return Steering(own.steering_bound, list(own.steering_hidden_sizes))


def trained_parts(own: FlowSettings, is_new: bool) -> Trains:
    """Return what reinforcement learning trains. is_new: the policy does not come from policy.path."""
    if own.sampling is Sampling.dsrl:
        return Trains.heads
    keeps_vlm = not is_new if own.train_expert_only is None else own.train_expert_only
    return Trains.expert if keeps_vlm else Trains.everything
