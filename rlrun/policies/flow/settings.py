"""The keys that every kind of flow policy has in its section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rlrun.config.checks import Faults
from rlrun.config.schema import RunConfig
from rlrun.config.sections import COUNT, POSITIVE, Section, bounded
from rlrun.system.errors import RunError

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


MLP_RATIO = 4  # of a new tower


class PatchPositions(Enum):
    """Which position embedding a patch of a picture gets."""

    exact = "exact"  # row and column of the patch
    shifted = "shifted"  # one less each, 0 stays, as in trainings in float32 by LeRobot 0.4 with transformers 4


@dataclass(frozen=True)
class VisionSizes:
    """Sizes of a SigLIP tower; the defaults are those of SmolVLM2-500M."""

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    image_size: int = 512  # pixels per side
    patch_size: int = 16
    layer_norm_eps: float = 1e-6


def new_vision_sizes(own: FlowSettings, image_size: int) -> VisionSizes:
    """Return the sizes of a new policy's tower. image_size: pixels per side."""
    return VisionSizes(
        hidden_size=own.vision_hidden_size,
        intermediate_size=MLP_RATIO * own.vision_hidden_size,
        num_hidden_layers=own.vision_num_layers,
        num_attention_heads=own.vision_num_heads,
        image_size=image_size,
        patch_size=own.patch_size,
    )


def check_flow(config: RunConfig, own: FlowSettings, vlm_parts: Sequence[str]) -> Faults:
    """Check learned noise, and that adapters are where something trains.

    vlm_parts: those of the VLM, as actor.lora.targets names them.
    """
    section = f"policy.{config.policy.kind}."
    yield from _check_noise(section, own)
    yield from _check_adapters(config, section, own, vlm_parts)


def _check_noise(section: str, own: FlowSettings) -> Faults:
    found = own.noise_range
    if len(found) != 2 or found[0] >= found[1]:
        yield RunError(
            "The range of learned noise has no two deviations.",
            key=section + "noise_range",
            value=found,
            cause="It is the smallest and the largest deviation of a flow step.",
            remedy=f"Set {section}noise_range=[0.08, 0.16].",
        )


def _check_adapters(config: RunConfig, section: str, own: FlowSettings, vlm_parts: Sequence[str]) -> Faults:
    lora, trains = config.actor.lora, trained_parts(own, is_new=config.policy.path is None)
    if lora.rank == 0 or trains is Trains.everything:
        return
    if trains is Trains.heads:
        yield RunError(
            "DSRL leaves the network as it is, and adapters would change it.",
            key="actor.lora.rank",
            value=lora.rank,
            remedy=f"Set actor.lora.rank=0, or another {section}sampling.",
        )
        return
    frozen = [part for part in lora.targets if part in vlm_parts]
    if frozen:
        yield RunError(
            f"Adapters in {', '.join(frozen)} would never train.",
            key="actor.lora.targets",
            value=lora.targets,
            cause=f"The VLM is computed without gradients ({section}train_expert_only).",
            remedy=f"Set {section}train_expert_only=false: beside adapters the VLM keeps its weights anyway.",
        )
