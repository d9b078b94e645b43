"""How a kind of flow policy is opened, as its spec says; torch is imported when a policy is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.config.schema import RunConfig

if TYPE_CHECKING:
    import torch

    from rlrun.policies.flow.opening import FlowFolder
    from rlrun.policies.flow.policy import FlowPolicy
    from rlrun.policies.weight_files import StoredWeights


@dataclass(frozen=True)
class Openers:
    """The three ways, by the function that reads the kind's folder."""

    read: Callable[[Path, RunConfig | None], FlowFolder]  # all but the weights

    def whole(self, folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig | None) -> FlowPolicy:
        """Open to act."""
        from rlrun.policies.flow.opening import open_whole

        return open_whole(self.read(folder, run), dtype, device, run)

    def to_shard(self, folder: Path, run: RunConfig) -> tuple[FlowPolicy, StoredWeights]:
        """Open to train."""
        from rlrun.policies.flow.opening import open_to_shard

        return open_to_shard(self.read(folder, run), run)

    def with_adapters(self, folder: Path, dtype: torch.dtype, device: torch.device, run: RunConfig) -> FlowPolicy:
        """Open to act with adapters that are sent apart."""
        from rlrun.policies.flow.opening import open_with_adapters

        return open_with_adapters(self.read(folder, run), dtype, device, run)
