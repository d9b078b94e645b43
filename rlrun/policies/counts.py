"""Work and memory of a policy's pass: computations, reads and kept tensors, counted from its class; without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from rlrun.config.schema import ActorConfig

_SMALL_UNIT = 2 * 2**20  # bytes; fewer take longer to ask for than to receive


def unit_limit(block_bytes: Sequence[int]) -> int:
    """Return the maximum bytes of gathered parameters of the blocks of one FSDP unit.

    block_bytes: of every block of the policy, gathered. A unit as large as the largest block needs no more memory.
    """
    return max([_SMALL_UNIT, *block_bytes])


def replicates_frozen(actor: ActorConfig) -> bool:
    """Return whether frozen weights are whole on every rank, outside of FSDP.

    Where all parameters stay gathered, or one rank holds them all, FSDP would hold their shards beside the whole.
    """
    if actor.cpu_offload:
        return False
    if actor.replicate_frozen is not None:
        return actor.replicate_frozen
    return actor.keeps_gathered or actor.ranks_of_a_copy == 1


@dataclass(frozen=True)
class PassCount:
    """Work of a pass of the policy: of one row, and what a pass needs beside it, however many rows it has.

    Example: acting of the 7B for BEHAVIOR: PassCount(flops=14.4e12, num_bytes=21.3e9, num_kernels=1931, …).
    """

    flops: float = 0.0  # of matrix products, convolutions and attention
    num_bytes: float = 0.0  # inputs and outputs of all other kernels
    num_kernels: int = 0  # launches, whatever the number of rows
    saved_bytes: float = 0.0  # held at one time for the backward pass, with temporaries; 0: there is none
    thin_bytes: float = 0.0  # inputs and outputs of products with few operations per byte, which memory bounds
    fixed_flops: float = 0.0
    fixed_bytes: float = 0.0
    fixed_saved_bytes: float = 0.0
    fixed_thin_bytes: float = 0.0

    def of(self, rows: int) -> PassCount:
        """Return the work of a pass over `rows` rows, fixed parts included."""
        return PassCount(
            flops=rows * self.flops + self.fixed_flops,
            num_bytes=rows * self.num_bytes + self.fixed_bytes,
            num_kernels=self.num_kernels,
            saved_bytes=rows * self.saved_bytes + self.fixed_saved_bytes,
            thin_bytes=rows * self.thin_bytes + self.fixed_thin_bytes,
        )

    @classmethod
    def from_two(cls, passes: Sequence[PassCount], rows: tuple[int, int]) -> PassCount:
        """Return the line through the counts of two passes, of `rows` rows."""
        few, many = passes
        a, b = rows

        def line(first: float, second: float) -> tuple[float, float]:
            slope = (second - first) / (b - a)
            return slope, first - a * slope

        flops, fixed_flops = line(few.flops, many.flops)
        num_bytes, fixed_bytes = line(few.num_bytes, many.num_bytes)
        saved_bytes, fixed_saved_bytes = line(few.saved_bytes, many.saved_bytes)
        thin_bytes, fixed_thin_bytes = line(few.thin_bytes, many.thin_bytes)
        if thin_bytes < 0:  # with more rows the products are no longer thin
            thin_bytes = many.thin_bytes / b
            fixed_thin_bytes = 0.0
        num_kernels = max(few.num_kernels, many.num_kernels)
        fixed = fixed_flops, fixed_bytes, fixed_saved_bytes, fixed_thin_bytes
        return cls(flops, num_bytes, num_kernels, saved_bytes, thin_bytes, *fixed)


@dataclass(frozen=True)
class StackCount:
    """Blocks that run one after another: parameters of each, and the last one's output of one row in an act."""

    block_parameters: tuple[int, ...]  # with adapters
    trained_parameters: tuple[int, ...]  # of these
    num_tokens: int  # 0: the output has no tokens
    width: int


@dataclass(frozen=True)
class PolicyCounts:
    """Sizes and work of a policy."""

    num_parameters: int  # of the policy, with new heads and without adapters
    num_trained: int  # with adapters
    num_frozen: int  # never trained, with unread ones
    num_unread: int  # that no forward pass reads
    num_sent: int  # that change at a rollout worker, merged with their adapters
    stacks: tuple[StackCount, ...]  # (): it has no blocks
    choice_bytes: int  # of a row's choice in a trajectory, without log-probabilities
    act: PassCount
    update: PassCount  # forward and backward pass
    recompute: PassCount  # the same with every block checkpointed
    is_counted: bool = True  # False: the numbers above say nothing about memory and time

    @property
    def num_adapters(self) -> int:
        """Parameters of adapters."""
        return self.num_trained + self.num_frozen - self.num_parameters

    @property
    def num_trained_whole(self) -> int:
        """Trained parameters that are none of adapters."""
        return self.num_trained - self.num_adapters

    def learning(self, share: float) -> PassCount:
        """Return a forward and backward pass with a share of the blocks checkpointed."""
        without = self.update
        fully = self.recompute
        return PassCount(
            *(
                getattr(without, entry.name) + share * (getattr(fully, entry.name) - getattr(without, entry.name))
                for entry in fields(PassCount)
            )
        )

    def to_json(self) -> str:
        """Return the text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PolicyCounts:
        """Read counts. Raises ValueError, KeyError or TypeError for another text."""
        values = json.loads(text)
        stacks = tuple(
            StackCount(
                tuple(stack["block_parameters"]),
                tuple(stack["trained_parameters"]),
                stack["num_tokens"],
                stack["width"],
            )
            for stack in values["stacks"]
        )
        passes = {name: PassCount(**values[name]) for name in ("act", "update", "recompute")}
        return cls(**{**values, **passes, "stacks": stacks})
