"""The specs of the small networks, without torch: a perceptron, and one behind convolutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.config.checks import Faults, not_multiple
from rlrun.config.schema import RunConfig
from rlrun.config.simulator_spec import PlannedSpaces
from rlrun.data.messages import Spaces
from rlrun.policies.actor_critic.settings import MODEL_TYPE, CnnSettings, MlpSettings
from rlrun.policies.spec import PolicySpec
from rlrun.system.errors import RunError

if TYPE_CHECKING:
    import torch

    from rlrun.policies.actor_critic.policy import ActorCriticPolicy


def _recognizer(has_images: bool) -> Callable[[Mapping[str, Any]], bool]:
    def recognizes(described: Mapping[str, Any]) -> bool:
        return described.get("model_type") == MODEL_TYPE and bool(described.get("num_images")) == has_images

    return recognizes


def _open(folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig | None) -> ActorCriticPolicy:
    from rlrun.policies.actor_critic.policy import ActorCriticPolicy as Class

    return Class.load(folder, dtype, device)


def _from_scratch(config: RunConfig, spaces: Spaces) -> ActorCriticPolicy:
    from rlrun.policies.actor_critic.policy import new_actor_critic

    return new_actor_critic(config.policy, config.env.image_size, spaces, config.seed)


def _num_parameters(config: RunConfig, spaces: PlannedSpaces) -> int:
    """Return the number of parameters; with continuous actions, the worst case."""
    policy, own = config.policy, config.policy.section(MlpSettings)
    num_choices = policy.num_action_chunks * spaces.num_actions
    width, convolutions = spaces.num_proprio, 0
    if isinstance(own, CnnSettings):
        width = spaces.num_proprio if policy.use_proprio else 0
        channels = [3 * spaces.num_images, *own.conv_channels]
        convolutions = sum((4 * 4 * a + 1) * b for a, b in pairwise(channels))
        width += channels[-1] * (config.env.image_size // 2 ** len(own.conv_channels)) ** 2
    networks = ([width, *own.hidden_sizes, num_choices], [width, *policy.value_hidden_sizes, 1])
    return convolutions + num_choices + sum((a + 1) * b for sizes in networks for a, b in pairwise(sizes))


def check_layers(config: RunConfig) -> Faults:
    """Check that policy and critic have at least one hidden layer."""
    own = config.policy.section(MlpSettings)
    sizes = {
        f"policy.{config.policy.kind}.hidden_sizes": own.hidden_sizes,
        "policy.value_hidden_sizes": config.policy.value_hidden_sizes,
    }
    if isinstance(own, CnnSettings):
        sizes["policy.cnn.conv_channels"] = own.conv_channels
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
    open=_open,
    from_scratch=_from_scratch,
    check=check_layers,
    num_parameters=_num_parameters,
)
CNN = PolicySpec(
    name="cnn",
    section=CnnSettings,
    recognizes=_recognizer(has_images=True),
    open=_open,
    from_scratch=_from_scratch,
    check=check_convolutions,
    observes=("images",),
    num_parameters=_num_parameters,
)
