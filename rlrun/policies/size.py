"""The size of a policy: parameters, blocks, and tokens per block; without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlrun.config.schema import ActorConfig, LoraConfig

_SMALL_UNIT = 2 * 2**20  # bytes; fewer take longer to ask for than to receive


def unit_limit(block_bytes: Sequence[int]) -> int:
    """Return how many bytes of gathered parameters the blocks of one FSDP unit have at most.

    block_bytes: of every block of the policy, gathered. A unit as large as the largest block needs no more memory.
    """
    return max([_SMALL_UNIT, *block_bytes])


def replicates_frozen(actor: ActorConfig) -> bool:
    """Return whether frozen weights are whole on every rank, outside of FSDP.

    Where all parameters stay gathered, or one rank holds them all, FSDP would hold a shard of them beside the whole.
    """
    if actor.cpu_offload:
        return False
    if actor.replicate_frozen is not None:
        return actor.replicate_frozen
    return actor.keeps_gathered or actor.ranks_of_a_copy == 1


@dataclass(frozen=True)
class Stack:
    """Equal transformer blocks that run one after another.

    Example: Stack(4096, 11008, num_layers=32, num_tokens=1001, part="language_model", is_gated=True) is Llama's.
    """

    width: int
    inner: int  # width of the MLP
    num_layers: int  # layers that run
    num_tokens: int  # per row of a batch
    part: str  # part of the module, as actor.lora.targets names it
    num_sequences: int = 1  # sequences per row: images, for a vision transformer
    is_gated: bool = False  # MLP and norms as in Llama; False: as in a vision transformer
    has_layer_scale: bool = False
    query_width: int = 0  # of all heads together; 0: the width
    key_width: int = 0  # of all key heads together, and of all value heads; 0: the width
    modulation_parameters: int = 0  # of a block's adaptive norms, which compute once per row
    is_trained: bool = True  # False: it computes without gradients
    passes_to_act: float = 1  # forward passes per answer over those to learn, such as flow steps

    @property
    def matrix_parameters(self) -> int:
        """Parameters of one block's linear layers, without biases: each is one product per token."""
        attention = 2 * ((self.query_width or self.width) + (self.key_width or self.width))
        return self.width * (attention + (3 if self.is_gated else 2) * self.inner)

    @property
    def block_parameters(self) -> int:
        """Parameters of one block."""
        if self.is_gated:
            return self.matrix_parameters + (self.modulation_parameters or 2 * self.width)
        biases = 5 * self.width + self.inner
        return self.matrix_parameters + biases + (6 if self.has_layer_scale else 4) * self.width

    def adapter_parameters(self, rank: int) -> int:
        """Return the parameters of low-rank adapters on all linear layers of one block."""
        if not self.is_gated:  # query, key and value are one layer
            return rank * (6 * self.width + 2 * (self.width + self.inner))
        query, key = self.query_width or self.width, self.key_width or self.width
        return rank * (2 * (self.width + query) + 2 * (self.width + key) + 3 * (self.width + self.inner))


@dataclass(frozen=True)
class PolicySize:
    """The size of a policy. Example: the 7B for BEHAVIOR has 7_541_237_184 parameters, 3 stacks, 184 action tokens."""

    num_parameters: int
    stacks: tuple[Stack, ...]  # vision towers, the language model, an action expert if any; (): a small network
    num_pixels: int  # numbers of one row's images
    num_action_tokens: int
    new_parameters: int = 0  # parameters that reinforcement learning adds to the files' own
    dead_parameters: int = 0  # parameters that no forward pass reads; never optimized or sent
    frozen_parameters: int = 0  # parameters that forward passes read, but that are never optimized or sent
    num_bins: int = 256  # logits per action token; 0: actions are no logits
    own_choice_bytes: int = 0  # of a row's choice in a trajectory; 0: one byte per action token
    trains_heads_only: bool = False  # learning never runs the stacks: trajectories hold what the heads read
    whole_parts: Mapping[str, int] = field(default_factory=dict)  # large parts beside the stacks -> parameters

    @property
    def towers(self) -> tuple[Stack, ...]:
        """The vision towers."""
        return tuple(stack for stack in self.stacks if not stack.is_gated)

    @property
    def language_model(self) -> Stack:
        """The language model. Raises StopIteration for a small network."""
        return next(stack for stack in self.stacks if stack.is_gated)

    @property
    def unchanging_parameters(self) -> int:
        """Parameters that are never optimized or sent."""
        return self.dead_parameters + self.frozen_parameters

    @property
    def choice_bytes(self) -> int:
        """Bytes of a row's choice in a trajectory, without log-probabilities."""
        return self.own_choice_bytes or self.num_action_tokens

    @property
    def all_parameters(self) -> int:
        return self.num_parameters + self.new_parameters

    @property
    def block_parameters(self) -> int:
        """Parameters of all blocks together."""
        return sum(stack.num_layers * stack.block_parameters for stack in self.stacks)

    def adapter_parameters(self, lora: LoraConfig) -> int:
        """Return the parameters of adapters on the stacks that `lora.targets` names."""
        adapted = [stack for stack in self.stacks if stack.part in (lora.targets or ())]
        return sum(stack.num_layers * stack.adapter_parameters(lora.rank) for stack in adapted)

    def whole_parameters(self, lora: LoraConfig) -> int:
        """Return the parameters of the parts that `lora.trained_whole` names."""
        return sum(self.whole_parts.get(part, 0) for part in lora.trained_whole or ()) + self.new_parameters
