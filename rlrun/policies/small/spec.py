"""The small imitating network without torch: the keys of policy.small, the sizes in config.json, and the spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rlrun.config.faults import Faults, not_multiple
from rlrun.config.schema import RunConfig
from rlrun.config.sections import COUNT, Range, Section, bounded, load_object
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.spec import PolicySpec, StoredSizes, no_bins
from rlrun.system.errors import RunError

LOG_STDS = Range(-5.0, 2.0)
GROUP = 8  # channels that are normalized together
POLICY = "rlrun.policies.small.policy:SmallPolicy"


class SmallDistribution(Enum):
    normal = "normal"
    bins = "bins"


@dataclass
class SmallSettings(Section):
    """Settings for policy.kind=small; the sizes apply to a new policy."""

    # of actions. `normal`: a normal distribution, whose deviation is the same in all states; imitation brings its mean
    # to the demonstrated actions by their absolute difference. `bins`: 256 bins, as OpenVLA-OFT has them, by
    # cross-entropy.
    distribution: SmallDistribution = SmallDistribution.normal
    # of `normal`, where the 1st and 99th percentile of the demonstrated actions are -1 and 1. Imitation leaves it.
    initial_log_std: float = bounded(-1.6, LOG_STDS)
    conv_channels: list[int] = bounded([32, 48, 64], COUNT)  # channels of each stage; each halves the image
    text_hidden_size: int = bounded(64, COUNT)  # width of words and sentence
    hidden_sizes: list[int] = bounded([256, 256], COUNT)  # of what pictures, sentence and state become actions by


@dataclass(frozen=True)
class SmallConfig(StoredSizes):
    """Sizes of a network, and the statistics of the demonstrations."""

    MODEL_TYPE = "rlrun_small"

    num_actions: int  # A
    num_action_chunks: int  # C
    num_proprio: int  # 0: no proprioception
    num_images: int
    camera_names: tuple[str, ...]  # num_images names, in order
    image_size: int  # pixels per side; other pictures are resized
    distribution: str
    initial_log_std: float
    conv_channels: tuple[int, ...]
    text_hidden_size: int
    hidden_sizes: tuple[int, ...]
    value_hidden_sizes: tuple[int, ...]
    norm_stats: dict[str, Any]  # {"action": {"q01", "q99", "mask"}, "proprio": {...}}

    def __post_init__(self) -> None:
        """Raise ValueError for what the weights' shapes do not tell."""
        if self.image_size < 1:
            raise ValueError(f"image_size is {self.image_size}")
        if len(self.camera_names) != self.num_images:
            raise ValueError(f"camera_names are {len(self.camera_names)}, and num_images is {self.num_images}")

    @property
    def num_tokens(self) -> int:
        """K = C*A."""
        return self.num_action_chunks * self.num_actions

    @property
    def has_bins(self) -> bool:
        """Whether each choice is one of 256 bins."""
        return SmallDistribution(self.distribution) is SmallDistribution.bins


def new_config(
    config: RunConfig, num_actions: int, num_proprio: int, cameras: tuple[str, ...], norm_stats: dict[str, Any]
) -> SmallConfig:
    """Return the sizes of a new policy."""
    policy = config.policy
    settings = policy.section(SmallSettings)
    return SmallConfig(
        num_actions=num_actions,
        num_action_chunks=policy.num_action_chunks,
        num_proprio=num_proprio if policy.use_proprio else 0,
        num_images=len(cameras),
        camera_names=cameras,
        image_size=config.env.image_size,
        distribution=settings.distribution.value,
        initial_log_std=settings.initial_log_std,
        conv_channels=tuple(settings.conv_channels),
        text_hidden_size=settings.text_hidden_size,
        hidden_sizes=tuple(settings.hidden_sizes),
        value_hidden_sizes=tuple(policy.value_hidden_sizes),
        norm_stats=norm_stats,
    )


def num_parameters(config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the number of parameters of a new policy."""
    count: Callable[[SmallConfig], int] = load_object("rlrun.policies.small.network:count_parameters")  # imports torch
    cameras = ("",) * spaces.num_images
    return count(new_config(config, spaces.num_actions, spaces.num_proprio, cameras, {}))


def check(config: RunConfig) -> Faults:
    """Check the sizes, and that keys of one distribution are not set with the other."""
    yield from check_sizes(config)
    settings = config.policy.section(SmallSettings)
    if settings.distribution is SmallDistribution.normal:
        yield from no_bins(config, "the mean of a normal distribution")
    elif config.policy.path is None and settings.initial_log_std != SmallSettings().initial_log_std:
        yield RunError(
            "Bins have no deviation.",
            key="policy.small.initial_log_std",
            value=settings.initial_log_std,
            cause=f"policy.small.distribution={settings.distribution.value}",
            remedy="Leave the key out, or take policy.small.distribution=normal.",
        )


def check_sizes(config: RunConfig) -> Faults:
    """Check that there are layers, and that groups divide their channels.

    A policy from a folder has its own sizes and is not checked.
    """
    if config.policy.path is not None:
        return
    settings = config.policy.section(SmallSettings)
    layers = {"conv_channels": settings.conv_channels, "hidden_sizes": settings.hidden_sizes}
    for name, sizes in layers.items():
        if not sizes:
            key = f"policy.small.{name}"
            yield RunError(f"'{key}' is empty.", key=key, value=[], remedy="Name a size, such as [64].")
    for channels in settings.conv_channels:
        yield from not_multiple("policy.small.conv_channels", channels, "channels of a group", GROUP)


def _recognizes(described: Mapping[str, Any]) -> bool:
    return described.get("model_type") == SmallConfig.MODEL_TYPE


SPEC = PolicySpec(
    name="small",
    section=SmallSettings,
    recognizes=_recognizes,
    policy=POLICY,
    from_demonstrations=f"{POLICY}.from_demonstrations",
    check=check,
    observes=("images", "instruction"),
    num_parameters=num_parameters,
    reads=(),
)
