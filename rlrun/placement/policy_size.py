"""How large a policy is, without building it: parameters, and what its activations follow from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rlrun.config.schema import PolicyConfig, PolicyKind, RunConfig
from rlrun.placement.planned_spaces import OF_GYMNASIUM, planned_spaces

_SMALL_VOCABULARY = 1024
_PROMPT_TOKENS = 32  # where no length is configured
_HALF_LAYERS_BYTES = 34  # activations of a transformer layer, per token and hidden unit, at two bytes a number
_OPENVLA_7B = 7_541_237_184  # parameters; of a path that is not on this machine, such as where a plan is only looked at
_LLAMA_7B = {"hidden_size": 4096, "num_hidden_layers": 32}  # what official files leave out


@dataclass(frozen=True)
class PolicySize:
    """Example: PolicySize(7_541_237_184, hidden_size=4096, num_layers=32, sequence_length=846)."""

    num_parameters: int
    hidden_size: int  # of the language model, as its number of layers; the vision towers are small beside it
    num_layers: int
    sequence_length: int  # tokens of one forward pass: image patches, prompt, actions


def policy_size(config: RunConfig, num_parameters: int) -> PolicySize:
    """From `policy.path` where there is one, else from the sizes of a new policy."""
    policy, env = config.policy, config.env
    if policy.kind is not PolicyKind.openvla_oft:
        return PolicySize(num_parameters, max(policy.hidden_sizes, default=1), 1 + len(policy.hidden_sizes), 1)
    hidden, layers, patch, image = (
        policy.llm_hidden_size,
        policy.llm_num_layers,
        policy.patch_size,
        env.image_size,
    )
    text = _text_config(Path(policy.path)) if policy.path is not None else None
    if text is not None:
        hidden, layers, patch, image = int(text["hidden_size"]), int(text["num_hidden_layers"]), 14, 224
    spaces = planned_spaces(env)
    actions = policy.num_action_chunks * spaces.num_actions
    tokens = spaces.num_images * (image // patch) ** 2 + (policy.max_prompt_length or _PROMPT_TOKENS) + actions + 1
    return PolicySize(num_parameters, hidden, layers, tokens)


def activation_bytes(config: RunConfig, size: PolicySize) -> int:
    """Activations of one actor rank's forward pass over a micro batch: what the backward pass needs again.

    A layer keeps about 34 bytes per token and hidden unit in bf16, twice that in fp32; with checkpointing only its
    input, and one layer at a time in full.
    """
    numbers = config.actor.micro_batch_size * size.sequence_length * size.hidden_size
    width = 2 if config.actor.param_precision.value == "bf16" else 4
    layer = numbers * _HALF_LAYERS_BYTES * width // 2
    if config.actor.activation_checkpointing:
        return numbers * width * size.num_layers + layer
    return layer * size.num_layers


def count_parameters(policy: PolicyConfig) -> int:
    """Parameters of `policy.path`, from its safetensors headers; without a path, about those of a new policy.

    A path that is not on this machine, which is only planning, counts as an OpenVLA-OFT of 7 B.
    """
    files = sorted(Path(policy.path).glob("*.safetensors")) if policy.path is not None else []
    if files:
        return sum(_parameters_in(file) for file in files)
    if policy.path is not None and not Path(policy.path).exists():
        return _OPENVLA_7B
    if policy.kind is not PolicyKind.openvla_oft:
        widths = [OF_GYMNASIUM.num_proprio, *policy.hidden_sizes, OF_GYMNASIUM.num_actions, *policy.conv_channels]
        return 2 * sum(a * b for a, b in pairwise(widths))
    tower = 12 * policy.vision_num_layers * policy.vision_hidden_size**2
    tower += 3 * policy.patch_size**2 * policy.vision_hidden_size
    width, inner = policy.llm_hidden_size, policy.llm_intermediate_size
    projector = 8 * policy.vision_hidden_size * (2 * policy.vision_hidden_size + width) + width**2
    llm = policy.llm_num_layers * (4 * width**2 + 3 * width * inner) + 2 * _SMALL_VOCABULARY * width
    return 2 * tower + projector + llm


def _parameters_in(file: Path) -> int:
    """Numbers in a safetensors file: its header is a length (8 bytes) and JSON."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            count = 1
            for size in tensor["shape"]:
                count *= size
            total += count
    return total


def _text_config(folder: Path) -> dict | None:
    """Sizes of the language model in a checkpoint's config.json; None without one. One that is elsewhere: of 7 B."""
    file = folder / "config.json"
    if not folder.exists():
        return _LLAMA_7B
    return _LLAMA_7B | json.loads(file.read_text()).get("text_config", {}) if file.is_file() else None
