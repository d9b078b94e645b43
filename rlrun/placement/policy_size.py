"""How large a policy is, without building it: parameters, blocks, and the tokens that go through them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TypeVar

from rlrun.config.schema import LoraConfig, PolicyConfig, PolicyKind, RunConfig
from rlrun.config.simulator_spec import simulator_spec
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

T = TypeVar("T")

NUM_BINS = 256
_SMALL_VOCABULARY = 1024
_PROMPT_TOKENS = 32  # where no length is configured
_OFFICIAL_PROMPT_TOKENS = 50
_MOST_PROPRIO, _MOST_ACTIONS = 400, 32  # of most environments: a small network's size is planned on the safe side
_OPENVLA_7B = 7_541_237_184  # parameters; of a path that is not on this machine, such as where a plan is only looked at
_LLAMA_7B = {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11008, "vocab_size": 32064}
_TOWERS_7B = (  # what official files leave out
    {"hidden_size": 1024, "num_layers": 24, "mlp_size": 4096, "has_layer_scale": True, "num_register_tokens": 4},
    {"hidden_size": 1152, "num_layers": 27, "mlp_size": 4304},
)
_TOWER_MLP_RATIO = 4  # of a new policy


@dataclass(frozen=True)
class Stack:
    """Alike transformer blocks that run one after another; each is an FSDP unit.

    Example: Stack(width=4096, inner=11008, num_layers=32, num_tokens=1001, is_gated=True) is Llama's.
    """

    width: int
    inner: int  # of the MLP
    num_layers: int  # that run
    num_tokens: int  # per row of a batch
    num_sequences: int = 1  # into which they fall: images, for a vision transformer
    is_gated: bool = False  # Llama's MLP and norms; False: a vision transformer's
    has_layer_scale: bool = False

    @property
    def matrix_parameters(self) -> int:
        """Of the linear layers of one block, without biases: each is one product per token."""
        return 4 * self.width**2 + (3 if self.is_gated else 2) * self.width * self.inner

    @property
    def block_parameters(self) -> int:
        """Parameters of one block."""
        if self.is_gated:
            return self.matrix_parameters + 2 * self.width
        biases = 5 * self.width + self.inner
        return self.matrix_parameters + biases + (6 if self.has_layer_scale else 4) * self.width

    def adapter_parameters(self, rank: int) -> int:
        """Of low-rank adapters on all linear layers of one block."""
        if self.is_gated:
            return rank * (8 * self.width + 3 * (self.width + self.inner))
        return rank * (6 * self.width + 2 * (self.width + self.inner))


@dataclass(frozen=True)
class PolicySize:
    """Example: the published 7B for BEHAVIOR has 7_541_237_184 parameters, three stacks and 184 action tokens."""

    num_parameters: int
    stacks: tuple[Stack, ...]  # the language model last; none: a small network
    num_pixels: int  # numbers of one row's images
    num_action_tokens: int
    new_parameters: int = 0  # that reinforcement learning adds to what the files hold
    dead_parameters: int = 0  # that no forward pass reads; in no optimizer, and never sent

    @property
    def all_parameters(self) -> int:
        return self.num_parameters + self.new_parameters

    @property
    def block_parameters(self) -> int:
        """Of all blocks together."""
        return sum(stack.num_layers * stack.block_parameters for stack in self.stacks)

    def adapter_parameters(self, lora: LoraConfig) -> int:
        """Of adapters on the stacks that `lora.targets` names."""
        stacks = (self.stacks[-1:] if "language_model" in lora.targets else ()) + (
            self.stacks[:-1] if "vision_backbone" in lora.targets else ()
        )
        return sum(stack.num_layers * stack.adapter_parameters(lora.rank) for stack in stacks)

    def whole_parameters(self, lora: LoraConfig) -> int:
        """Of the parts that `lora.trained_whole` names; those not counted here are small."""
        projector = 0
        if "projector" in lora.trained_whole and self.stacks:
            vision, width = sum(stack.width for stack in self.stacks[:-1]), self.stacks[-1].width
            projector = 4 * vision * (vision + 1) + width * (4 * vision + 1) + width * (width + 1)
        return projector + self.new_parameters


def policy_size(config: RunConfig, num_parameters: int) -> PolicySize:
    """From `policy.path` where there is one, else from the sizes of a new policy."""
    policy, spaces = config.policy, simulator_spec(config.env).planned_spaces(config.env)
    num_pixels = spaces.num_images * config.env.image_size**2 * 3
    num_action_tokens = policy.num_action_chunks * spaces.num_actions
    if policy.kind is not PolicyKind.openvla_oft:
        return PolicySize(num_parameters, (), num_pixels, num_action_tokens)
    described = _described(policy, config.env.image_size)
    text, towers, (side, patch) = described
    patches = (side // patch) ** 2
    prompt = policy.max_prompt_length or (_PROMPT_TOKENS if policy.path is None else _OFFICIAL_PROMPT_TOKENS)
    length = spaces.num_images * patches + prompt + num_action_tokens
    length += int(policy.use_proprio) + int(policy.has_stop_token)
    stacks = tuple(_tower(tower, spaces.num_images, patches) for tower in towers)
    llm = Stack(text["hidden_size"], text["intermediate_size"], text["num_hidden_layers"], length, is_gated=True)
    new = _new_parameters(policy, llm.width, spaces.num_proprio, num_action_tokens) if policy.path is not None else 0
    dead = sum(_dead_parameters(tower, stack) for tower, stack in zip(towers, stacks, strict=True))
    pixels = 2 * spaces.num_images * side**2 * 3
    return PolicySize(num_parameters, (*stacks, llm), pixels, num_action_tokens, new, dead)


def _tower(tower: dict, num_images: int, patches: int) -> Stack:
    prefix = tower.get("num_register_tokens", 0) + int(
        tower.get("has_class_token", tower.get("has_layer_scale", False))
    )
    return Stack(
        tower["hidden_size"],
        tower["mlp_size"],
        tower["num_layers"] - 1,
        num_images * (patches + prefix),
        has_layer_scale=tower.get("has_layer_scale", False),
    )


def _dead_parameters(tower: dict, stack: Stack) -> int:
    """The last block and the norm behind it; the official second tower also carries a pooling head."""
    pool = 0
    if tower.get("has_attention_pool", not stack.has_layer_scale and tower["hidden_size"] == 1152):
        pool = stack.block_parameters - stack.width
    return stack.block_parameters + 2 * stack.width + pool


def _new_parameters(policy: PolicyConfig, width: int, num_proprio: int, num_action_tokens: int) -> int:
    sizes = [width, *policy.value_hidden_sizes]
    head = sum((a + 1) * b for a, b in pairwise(sizes)) + sizes[-1]
    projector = (num_proprio + 1) * width + (width + 1) * width if policy.use_proprio else 0
    return head + projector + (num_action_tokens * width if policy.has_action_queries else 0)


def _described(policy: PolicyConfig, image_size: int) -> tuple[dict, list[dict], tuple[int, int]]:
    """(language model, towers, (pixels to a side, to a patch's side)); a path that is elsewhere counts as a 7B."""
    if policy.path is None:
        width = policy.vision_hidden_size
        tower = {"hidden_size": width, "num_layers": policy.vision_num_layers, "mlp_size": _TOWER_MLP_RATIO * width}
        first = tower | {"has_layer_scale": True, "num_register_tokens": 1}
        text = {"hidden_size": policy.llm_hidden_size, "intermediate_size": policy.llm_intermediate_size}
        text["num_hidden_layers"] = policy.llm_num_layers
        return text, [first, tower], (image_size, policy.patch_size)
    file = Path(policy.path) / "config.json"
    described = _opened(file, lambda: json.loads(file.read_text())) if file.is_file() else {}
    towers = described.get("vision_towers") or list(_TOWERS_7B)
    sizes = described.get("image_sizes") or [224]
    return _LLAMA_7B | described.get("text_config", {}), towers, (sizes[0], described.get("patch_size", 14))


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
        widths = [_MOST_PROPRIO, *policy.hidden_sizes, _MOST_ACTIONS, *policy.conv_channels]
        return 2 * sum(a * b for a, b in pairwise(widths))
    tower = 12 * policy.vision_num_layers * policy.vision_hidden_size**2
    tower += 3 * policy.patch_size**2 * policy.vision_hidden_size
    width, inner = policy.llm_hidden_size, policy.llm_intermediate_size
    projector = 8 * policy.vision_hidden_size * (2 * policy.vision_hidden_size + width) + width**2
    llm = policy.llm_num_layers * (4 * width**2 + 3 * width * inner) + 2 * _SMALL_VOCABULARY * width
    return 2 * tower + projector + llm


def _parameters_in(file: Path) -> int:
    """Numbers in a safetensors file: its header is a length (8 bytes) and JSON."""
    shapes = _opened(file, lambda: _shapes_in(file))
    return sum(prod(shape) for shape in shapes)


def _shapes_in(file: Path) -> list[list[int]]:
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return [tensor["shape"] for name, tensor in header.items() if name != "__metadata__"]


def _opened(file: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except (OSError, ValueError, OverflowError, MemoryError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{file} cannot be read.",
            key="policy.path",
            value=str(file.parent),
            cause=f"{type(error).__name__}: {error}",
            remedy="It is damaged or was not copied completely: copy it again.",
            exit_status=ExitStatus.bad_input,
        ) from error
