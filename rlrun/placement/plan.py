"""The plan: one slot per worker process, with all decisions that are needed before it starts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property

from rlrun.config.simulator_spec import Setting
from rlrun.placement.inventory import NodeInfo


@dataclass(frozen=True)
class Choice:
    """A decision with its reason. Example: Choice("nccl", "every actor rank has an accelerator of its own")."""

    value: str
    why: str


NO_CHECK = Choice("on", "the worker has no group of accelerators")


@dataclass(frozen=True)
class Slot:
    """The planned place and environment of one worker process.

    Example: Slot("env", 3, "sim-0", "10.77.0.2", (3,), "RTX 4090", (Setting(…), …), "/opt/og/bin/python", None, "…")
    """

    role: str
    rank: int
    node: str
    address: str  # of the node; "" if the inventory does not give it
    accelerators: tuple[int, ...]  # indices on the node; empty: none
    accelerator_model: str  # "" without one
    environment: tuple[Setting, ...]
    interpreter: str | None  # None: the one that runs rlrun
    interface: str | None  # network interface; None: looked up on the node
    why: str
    memory_check: Choice = NO_CHECK  # "on" or "off": SGLang's comparison of free memory in a tensor-parallel group

    @property
    def name(self) -> str:
        return f"{self.role}/{self.rank}"


@dataclass(frozen=True)
class PlannedNode:
    """A node and the rank of its first accelerator in the plan's numbering."""

    node: NodeInfo
    group: str
    first_rank: int

    @property
    def ranks(self) -> str:
        """Example: "8-15"; "" without accelerators."""
        last = self.first_rank + len(self.node.usable) - 1
        return "" if last < self.first_rank else f"{self.first_rank}-{last}" if last > self.first_rank else str(last)


@dataclass(frozen=True)
class Plan:
    """All slots, ordered by role and rank."""

    nodes: tuple[PlannedNode, ...]
    slots: tuple[Slot, ...]
    training_backend: Choice  # collectives of the actor ranks
    sync_backend: Choice  # collectives of weight sync

    @cached_property
    def _by_name(self) -> dict[str, Slot]:
        return {slot.name: slot for slot in self.slots}

    def slot(self, role: str, rank: int) -> Slot:
        """Return the slot of one worker. Raises KeyError."""
        return self._by_name[f"{role}/{rank}"]

    def of(self, role: str) -> tuple[Slot, ...]:
        """Return a role's slots, ordered by rank."""
        return tuple(slot for slot in self.slots if slot.role == role)

    def environment(self, role: str, rank: int) -> dict[str, str]:
        """Return the variables to set before the worker imports its libraries."""
        return {setting.name: setting.value for setting in self.slot(role, rank).environment}

    def to_json(self) -> str:
        """Return the text of plan.json in the run folder."""
        return json.dumps(asdict(self), indent=1) + "\n"
