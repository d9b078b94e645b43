"""Which blocks of a policy share an FSDP unit: one gather and one reduction for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rlrun.policies.size import unit_limit


def fsdp_units(stacks: Sequence[Sequence[nn.Module]], width: int) -> list[list[nn.Module]]:
    """Divide every stack into units of consecutive blocks, in the order of the forward pass.

    stacks: of `Policy.stacks`. width: bytes of one gathered parameter.

    Memory is that of units of one block: no unit is larger than the largest block, or than a size that does not matter.
    """
    limit = unit_limit([_num_bytes(block, width) for stack in stacks for block in stack])
    units: list[list[nn.Module]] = []
    for stack in stacks:
        room = 0
        for block in stack:
            size = _num_bytes(block, width)
            if size > room:
                units.append([])
                room = limit
            units[-1].append(block)
            room -= size
    return units


def _num_bytes(block: nn.Module, width: int) -> int:
    return width * sum(parameter.numel() for parameter in block.parameters())
