"""The machine on which rows are measured, and how modules are started on it."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

KINDS = "rlrun.simulators"  # one of the groups of entry points
PRETENDED = "tests.pretended_cuda"  # runs a module on tensors that claim to be on cuda:0 and are not


@dataclass(frozen=True)
class Machine:
    """Example: Machine(num_cards=1, is_pretended=False)."""

    num_cards: int
    is_pretended: bool = False

    @property
    def device(self) -> torch.device:
        """The first card."""
        import torch

        return torch.device("cuda", 0)

    def command(self, module: str, *words: str) -> list[str]:
        """Return the command that runs a module on this machine's cards."""
        runner = [PRETENDED] if self.is_pretended else []
        return [sys.executable, "-m", *runner, module, *words]


def is_installed(package: str) -> bool:
    """Return whether this interpreter can import the package, without importing it.

    Of rlrun, whose sources are here in any case, its metadata must be installed, by which it finds its own kinds.
    """
    if package == "rlrun":
        return bool(entry_points(group=KINDS))
    return importlib.util.find_spec(package) is not None
