"""Shared specification of flow policies, without torch: keys of their sections, sizes, checks, and modules for LoRA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rlrun.config.faults import Faults
from rlrun.config.registry import no_faults
from rlrun.config.schema import RunConfig
from rlrun.config.sections import COUNT, POSITIVE, Section, bounded, load_object
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.flow.lerobot_config import LeRobotConfig, cameras_in
from rlrun.policies.folders import readable
from rlrun.policies.spec import LoraParts, PolicySpec, check_head_sizes, no_bins
from rlrun.system.errors import RunError
from rlrun.system.local_files import read_json

NOISE_SIZES = (128, 64)  # hidden layers of the head of learned noise: pi-RL's
MLP_RATIO = 4  # of a new tower
# files of LeRobot's and rlrun's beside config.json, tokenizer and weights
READS = (
    "policy_preprocessor*",
    "policy_postprocessor*",
    "flow_policy.json",
    "heads.safetensors",
    "first_noise.safetensors",
)
MIN_GUIDED_STEPS = 2  # of a flow under real-time chunking


class Trains(Enum):
    """Parts of a policy that an actor trains."""

    everything = "everything"
    expert = "expert"  # and the heads; the prefix stays as it is
    heads = "heads"  # the network stays as it is


class Sampling(Enum):
    """Method of sampling and of log-probabilities, see docs/policies.md."""

    flow_sde = "flow_sde"  # one random step, whose deviation depends on the step only
    flow_noise = "flow_noise"  # every step is random, with a learned deviation
    dsrl = "dsrl"  # no step is random: a learned noise actor gives the first noise
    nft = "nft"  # no step is random, and no log-probability is needed: velocities are learned


class FirstNoise(Enum):
    """First noise of the flow, without a noise actor."""

    drawn = "drawn"  # standard normal numbers, drawn for every chunk
    fixed = "fixed"  # standard normal numbers that never change


class CriticInput(Enum):
    """Input of the critic."""

    prefix = "prefix"  # mean and last token of the VLM's output
    expert = "expert"  # mean of the expert's action tokens, in a pass of their own at the mean of the first noise


@dataclass(frozen=True)
class Steering:
    """Settings of DSRL's noise actor."""

    bound: float  # of its numbers
    hidden_sizes: list[int]  # of the noise actor


@dataclass
class FlowSettings(Section):
    """Settings of sampling, of what trains, and of the size of a new policy."""

    num_flow_steps: int = bounded(4, COUNT)  # K, Euler steps from noise to actions, in rollout and update alike
    sampling: Sampling = Sampling.flow_sde
    first_noise: FirstNoise = FirstNoise.drawn  # of Flow-SDE, Flow-Noise and NFT
    noise_level: float = bounded(0.5, POSITIVE)  # of Flow-SDE: the deviation of the random step is proportional to it
    noise_range: list[float] = bounded([0.08, 0.16], POSITIVE)  # of Flow-Noise: deviations, low and high
    num_points: int = bounded(1, COUNT)  # of NFT: points per chunk at which the velocity is learned; a pass each
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
    llm_num_heads: int = bounded(4, COUNT)


def learned_range(settings: FlowSettings) -> tuple[float, float] | None:
    """Return the range of learned noise; None: it is not learned."""
    low, high = settings.noise_range
    return (low, high) if settings.sampling is Sampling.flow_noise else None


def steering(settings: FlowSettings) -> Steering | None:
    """Return the settings of the noise actor; None: the first noise is drawn."""
    if settings.sampling is not Sampling.dsrl:
        return None
    return Steering(settings.steering_bound, list(settings.steering_hidden_sizes))


def num_points(settings: FlowSettings) -> int | None:
    """Return the number of points at which NFT learns the velocity; None: it is not NFT's."""
    return settings.num_points if settings.sampling is Sampling.nft else None


def trained_parts(settings: FlowSettings, is_new: bool) -> Trains:
    """Return the parts that reinforcement learning trains. is_new: the policy does not come from policy.path."""
    if settings.sampling is Sampling.dsrl:
        return Trains.heads
    keeps_vlm = not is_new if settings.train_expert_only is None else settings.train_expert_only
    return Trains.expert if keeps_vlm else Trains.everything


class PatchPositions(Enum):
    """Position embedding of the patches of a picture."""

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


def new_vision_sizes(settings: FlowSettings, image_size: int) -> VisionSizes:
    """Return the sizes of a new policy's tower. image_size: pixels per side."""
    return VisionSizes(
        hidden_size=settings.vision_hidden_size,
        intermediate_size=MLP_RATIO * settings.vision_hidden_size,
        num_hidden_layers=settings.vision_num_layers,
        num_attention_heads=settings.vision_num_heads,
        image_size=image_size,
        patch_size=settings.patch_size,
    )


def check_flow(config: RunConfig, settings: FlowSettings, vlm_parts: Sequence[str]) -> Faults:
    """Check learned noise, and that adapters are where something trains.

    vlm_parts: those of the VLM, as actor.lora.targets names them.
    """
    section = f"policy.{config.policy.kind}."
    yield from no_bins(config, "the flow's velocity")
    yield from _check_noise(section, settings)
    yield from _check_guidance(config, section, settings)
    yield from _check_adapters(config, section, settings, vlm_parts)


def _check_noise(section: str, settings: FlowSettings) -> Faults:
    limits = settings.noise_range
    if len(limits) != 2 or limits[0] >= limits[1]:
        yield RunError(
            "The range of learned noise has no two deviations.",
            key=section + "noise_range",
            value=limits,
            cause="It is the smallest and the largest deviation of a flow step.",
            remedy=f"Set {section}noise_range=[0.08, 0.16].",
        )


def _check_guidance(config: RunConfig, section: str, settings: FlowSettings) -> Faults:
    if config.evaluation.real_time_chunking.enable and settings.num_flow_steps < MIN_GUIDED_STEPS:
        yield RunError(
            "Real-time chunking needs several flow steps.",
            key=section + "num_flow_steps",
            value=settings.num_flow_steps,
            cause="In the first one the guidance goes too far, and the next ones mend that.",
            remedy=f"Set {section}num_flow_steps={MIN_GUIDED_STEPS} or more.",
        )


def _check_adapters(config: RunConfig, section: str, settings: FlowSettings, vlm_parts: Sequence[str]) -> Faults:
    lora = config.actor.lora
    trains = trained_parts(settings, is_new=config.policy.path is None)
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
    frozen = [part for part in lora.targets or () if part in vlm_parts]
    if frozen:
        yield RunError(
            f"Adapters in {', '.join(frozen)} would never train.",
            key="actor.lora.targets",
            value=lora.targets,
            cause=f"The VLM is computed without gradients ({section}train_expert_only).",
            remedy=f"Set {section}train_expert_only=false: beside adapters the VLM keeps its weights anyway.",
        )


def stored_json(config: RunConfig, name: str) -> dict[str, Any]:
    """Return a JSON file of `policy.path`; {}: there is none, as when only a plan is made."""
    if config.policy.path is None:
        return {}
    file = Path(config.policy.path) / name
    content: dict[str, Any] = readable(file, lambda: read_json(file)) if file.is_file() else {}
    return content


def count_new(config: RunConfig, settings: FlowSettings, network: str, described: LeRobotConfig) -> int:
    """Count the parameters of a new policy. network: names its class; described: its architecture."""
    count: Callable[..., int] = load_object("rlrun.policies.flow.policy:count_parameters")  # imports torch
    return count(load_object(network), described, config, settings)


def flow_spec(
    name: str,
    section: type[FlowSettings],
    recognizes: Callable[[Mapping[str, Any]], bool],
    policy: str,
    vlm_parts: tuple[str, ...],
    expert_part: str,
    projections: tuple[str, ...],
    num_parameters: Callable[[RunConfig, PlannedSpaces], int],
    to_lerobot: str,
    trained_whole: tuple[str, ...] = ("action_in_proj", "action_out_proj"),
    cameras: Callable[[Path], tuple[str, ...]] = cameras_in,
    check_own: Callable[[RunConfig], Faults] = no_faults,
    shipped_as: Callable[[RunConfig], str | None] = lambda config: None,
    reads: tuple[str, ...] = (),
    conversion: Callable[[Mapping[str, Any]], str | None] = lambda described: None,
) -> PolicySpec:
    """Return the spec of a kind; arguments as of PolicySpec.

    vlm_parts, expert_part, projections: modules of its network, by the names that actor.lora takes. trained_whole: of
    the projections, those beside adapters. check_own: checks beside those of all kinds. reads: files beside those of
    all flow policies.
    """

    def check(config: RunConfig) -> Faults:
        settings = config.policy.section(section)
        yield from check_flow(config, settings, vlm_parts)
        yield from check_head_sizes(config, f"policy.{name}.", settings)
        yield from check_own(config)

    def learned_by(config: RunConfig) -> str | None:
        return "nft" if config.policy.section(section).sampling is Sampling.nft else None  # no log-probabilities

    heads = ("value_head", "noise_head")
    return PolicySpec(
        name=name,
        section=section,
        recognizes=recognizes,
        policy=policy,
        from_demonstrations=f"{policy}.from_demonstrations",
        published=f"{policy}.published",
        check=check,
        observes=("images", "proprio", "instruction"),
        continues_chunks=True,
        lora=LoraParts(
            adaptable=(*vlm_parts, expert_part),
            whole=(*vlm_parts, expert_part, *projections, *heads),
            targets=(expert_part,),
            trained_whole=(*heads, *trained_whole),
        ),
        num_parameters=num_parameters,
        cameras=cameras,
        to_lerobot=to_lerobot,
        learned_by=learned_by,
        shipped_as=shipped_as,
        reads=(*READS, *reads),
        conversion=conversion,
    )
