"""The small networks, without torch: keys of policy.mlp and policy.cnn, the sizes in config.json, and the specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any

from rlrun.config.faults import Faults, not_multiple
from rlrun.config.schema import RunConfig
from rlrun.config.sections import COUNT, Range, Section, bounded
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.policies.spec import PolicySpec, StoredSizes
from rlrun.system.errors import RunError

LOG_STDS = -5.0, 2.0  # the deviation of a squashed normal distribution stays within their exponentials
POLICY = "rlrun.policies.actor_critic.policy:ActorCriticPolicy"


class ActionKind(Enum):
    normal = "normal"
    squashed = "squashed"


class Activation(Enum):
    tanh = "tanh"
    relu = "relu"


@dataclass
class MlpSettings(Section):
    """Settings for policy.kind=mlp."""

    hidden_sizes: list[int] = bounded([64, 64], COUNT)
    activation: Activation = Activation.tanh
    # continuous actions. `normal`: a normal distribution whose deviation is the same in all states. `squashed`: tanh of
    # a normal one whose deviation depends on the state, so that actions keep their limits, as sac and rlpd need it.
    distribution: ActionKind = ActionKind.normal
    # of continuous actions, whose limits are -1 and 1; before tanh
    initial_log_std: float = bounded(0.0, Range(*LOG_STDS, is_low_open=True, is_high_open=True))
    normalize_observations: bool = False  # normalize proprioception by its running mean and deviation


@dataclass
class CnnSettings(MlpSettings):
    """Settings for policy.kind=cnn."""

    conv_channels: list[int] = bounded([16, 32, 64], COUNT)  # channels of each layer; each halves the image


@dataclass(frozen=True)
class ActorCriticConfig(StoredSizes):
    """Sizes of a network. Example: HalfCheetah: num_actions 6, num_choices None, num_proprio 17, num_images 0."""

    MODEL_TYPE = "rlrun_actor_critic"

    num_actions: int  # A
    num_action_chunks: int  # C
    num_choices: int | None  # discrete: each action is one of 0..num_choices-1; None: continuous
    action_low: tuple[float, ...]  # A numbers; continuous actions: the network's -1
    action_high: tuple[float, ...]  # the network's 1
    num_proprio: int  # 0: no proprioception
    num_images: int  # 0: no images
    image_size: int
    hidden_sizes: tuple[int, ...]  # of the policy, after the convolutions
    value_hidden_sizes: tuple[int, ...]
    conv_channels: tuple[int, ...]  # layers that halve the image; only with images
    initial_log_std: float
    is_normalized: bool  # normalize proprioception by running statistics
    camera_names: tuple[str, ...] = ()  # num_images names, in order; (): unknown
    distribution: str = ActionKind.normal.value  # of continuous actions
    activation: str = Activation.tanh.value

    @property
    def num_tokens(self) -> int:
        """K = C*A."""
        return self.num_action_chunks * self.num_actions

    @property
    def is_squashed(self) -> bool:
        """Whether actions are tanh of normal numbers."""
        return self.num_choices is None and self.distribution == ActionKind.squashed.value


def _recognizer(has_images: bool) -> Callable[[Mapping[str, Any]], bool]:
    def recognizes(described: Mapping[str, Any]) -> bool:
        is_ours = described.get("model_type") == ActorCriticConfig.MODEL_TYPE
        return is_ours and bool(described.get("num_images")) == has_images

    return recognizes


def _num_parameters(config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the number of parameters; with continuous actions, the worst case."""
    policy = config.policy
    settings = config.policy.section(MlpSettings)
    num_choices = policy.num_action_chunks * spaces.num_actions
    width = spaces.num_proprio
    convolutions = 0
    if isinstance(settings, CnnSettings):
        width = spaces.num_proprio if policy.use_proprio else 0
        channels = [3 * spaces.num_images, *settings.conv_channels]
        convolutions = sum((4 * 4 * a + 1) * b for a, b in pairwise(channels))
        width += channels[-1] * (config.env.image_size // 2 ** len(settings.conv_channels)) ** 2
    is_squashed = settings.distribution is ActionKind.squashed  # then the network gives the deviations, too
    outputs = 2 * num_choices if is_squashed else num_choices
    networks = ([width, *settings.hidden_sizes, outputs], [width, *policy.value_hidden_sizes, 1])
    apart = 0 if is_squashed else num_choices
    return convolutions + apart + sum((a + 1) * b for sizes in networks for a, b in pairwise(sizes))


def check_layers(config: RunConfig) -> Faults:
    """Check that policy and critic have at least one hidden layer."""
    settings = config.policy.section(MlpSettings)
    sizes = {
        f"policy.{config.policy.kind}.hidden_sizes": settings.hidden_sizes,
        "policy.value_hidden_sizes": config.policy.value_hidden_sizes,
    }
    if isinstance(settings, CnnSettings):
        sizes["policy.cnn.conv_channels"] = settings.conv_channels
    for key, given in sizes.items():
        if not given:
            yield RunError(f"'{key}' is empty.", key=key, value=[], remedy="Name a size, such as [64].")


def check_convolutions(config: RunConfig) -> Faults:
    """Check that there are layers, and that every convolution can halve the image."""
    yield from check_layers(config)
    halved = 2 ** len(config.policy.section(CnnSettings).conv_channels)
    size = config.env.image_size
    yield from not_multiple("env.image_size", size, "two per layer of policy.cnn.conv_channels", halved)


MLP = PolicySpec(
    name="mlp",
    section=MlpSettings,
    recognizes=_recognizer(has_images=False),
    policy=POLICY,
    from_scratch=f"{POLICY}.from_scratch",
    check=check_layers,
    num_parameters=_num_parameters,
    reads=(),
)
CNN = PolicySpec(
    name="cnn",
    section=CnnSettings,
    recognizes=_recognizer(has_images=True),
    policy=POLICY,
    from_scratch=f"{POLICY}.from_scratch",
    check=check_convolutions,
    observes=("images",),
    num_parameters=_num_parameters,
    reads=(),
)
