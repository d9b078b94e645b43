"""The plan: one slot per worker process, with all decisions that are needed before it starts."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from rlrun.config.schema import PlacementConfig
from rlrun.config.simulator_process import Setting
from rlrun.placement.inventory import NodeInfo
from rlrun.system.errors import ExitStatus, RunError

ROLES = ("actor", "rollout", "env")
EVERYWHERE = "everywhere"  # the single group of the short form: all nodes
_GROUP_KEYS = ("count", "accelerator", "names", "python", "interface", "environment", "temp_dir", "spill_dirs")
_ROLE_KEYS = ("on", "accelerators", "workers_per_accelerator", "accelerators_per_worker")
_YAML_ON = {"True": "on"}  # YAML 1.1 reads `on:` without quotes as true


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

    def cards_of(self, *roles: str) -> set[tuple[str, int]]:
        """Return (node, index) of the accelerators that workers of some roles have."""
        return {(slot.node, index) for slot in self.slots if slot.role in roles for index in slot.accelerators}

    def environment(self, role: str, rank: int) -> dict[str, str]:
        """Return the variables to set before the worker imports its libraries."""
        return {setting.name: setting.value for setting in self.slot(role, rank).environment}

    def to_json(self) -> str:
        """Return the text of plan.json in the run folder."""
        return json.dumps(asdict(self), indent=1) + "\n"


@dataclass(frozen=True)
class GroupRequest:
    """A node group. Example: GroupRequest("sim", 1, "RTX 4090", python="/opt/omnigibson/bin/python")."""

    name: str
    count: int | None = None  # nodes; None: all that fit
    # part of the model's name, with_rt_cores, without_rt_cores; "none": nodes without accelerators; None: any node
    accelerator: str | None = None
    names: tuple[str, ...] = ()  # only these nodes; empty: any
    python: str | None = None  # interpreter of its workers; None: rlrun's interpreter
    interface: str | None = None  # network interface; None: the one that owns the route, looked up on the node
    environment: tuple[tuple[str, str], ...] = ()
    temp_dir: str | None = None  # of its Ray; None: cluster.temp_dir
    spill_dirs: tuple[str, ...] = ()  # Ray spills to the one with most free space; empty: to temp_dir


@dataclass(frozen=True)
class RoleRequest:
    """The requested place of a role. Example: RoleRequest("env", ("sim",), "0-3", workers_per_accelerator=1)."""

    role: str
    on: tuple[str, ...]  # groups, in the order that numbers their accelerators
    accelerators: Any  # ranks "0-7", "all", a list; None: all, or the cores of nodes without accelerators
    workers_per_accelerator: int | None = None
    accelerators_per_worker: int | None = None


@dataclass(frozen=True)
class Request:
    """The whole section `placement:`. Without roles the planner places them by rule."""

    groups: tuple[GroupRequest, ...]
    roles: tuple[RoleRequest, ...]

    def of(self, roles: Sequence[str]) -> Request:
        """Return the request for some roles, with the node groups that they use."""
        kept = tuple(role for role in self.roles if role.role in roles)
        if not self.roles or len(kept) == len(self.roles):
            return self
        used = {name for role in kept for name in role.on}
        return Request(tuple(group for group in self.groups if group.name in used), kept)


def read_request(config: PlacementConfig) -> Request:
    """Read `placement:`. Raises RunError for an unknown key, role or group, and for a role without a place."""
    groups = tuple(_group(name, fields or {}) for name, fields in config.nodes.items())
    groups = groups or (GroupRequest(EVERYWHERE),)
    roles = tuple(_role(role, value, [group.name for group in groups]) for role, value in config.roles.items())
    missing = [role for role in ROLES if role not in config.roles]
    if config.roles and missing:
        raise refused(
            f"{_list(missing)} has no place.",
            f"placement.roles.{missing[0]}",
            remedy=f"Give all of {_list(ROLES)} a place, or none: rlrun then places them by rule.",
        )
    return Request(groups, roles)


def simulator_python(config: PlacementConfig) -> str | None:
    """Return the interpreter that node groups name for simulators; None: rlrun's own. Raises RunError for several."""
    named = {group.python: group.name for group in read_request(config).groups if group.python is not None}
    if len(named) > 1:
        raise refused(
            "The node groups name several interpreters, and one is used here.",
            "placement.nodes",
            _list(sorted(named)),
            remedy=f"Leave out the others' python, as in placement.nodes.{min(named.values())}.python=null.",
        )
    return next(iter(named), None)


def _group(name: str, fields: Any) -> GroupRequest:
    key = f"placement.nodes.{name}"
    _check_keys(key, fields, _GROUP_KEYS)
    count = fields.get("count")
    if count is not None:
        _positive(f"{key}.count", count)
    names = fields.get("names") or ()
    spill_dirs = fields.get("spill_dirs") or ()
    return GroupRequest(
        name,
        count,
        fields.get("accelerator"),
        (names,) if isinstance(names, str) else tuple(names),
        fields.get("python"),
        fields.get("interface"),
        tuple((str(k), str(v)) for k, v in (fields.get("environment") or {}).items()),
        fields.get("temp_dir"),
        (spill_dirs,) if isinstance(spill_dirs, str) else tuple(spill_dirs),
    )


def _role(role: str, value: Any, groups: list[str]) -> RoleRequest:
    key = f"placement.roles.{role}"
    if role not in ROLES:
        raise refused(f"There is no role '{role}'.", key, remedy=_nearest(role, ROLES))
    if not isinstance(value, Mapping):
        return RoleRequest(role, tuple(groups), value)
    value = {_YAML_ON.get(str(name), name): field for name, field in value.items()}
    _check_keys(key, value, _ROLE_KEYS)
    on = value.get("on", groups)
    on = (on,) if isinstance(on, str) else tuple(on)
    for group in on:
        if group not in groups:
            raise refused(
                f"There is no node group '{group}'.",
                f"{key}.on",
                group,
                remedy=_nearest(group, groups),
            )
    for name in _ROLE_KEYS[2:]:
        if value.get(name) is not None:
            _positive(f"{key}.{name}", value[name])
    return RoleRequest(role, on, value.get("accelerators"), *(value.get(name) for name in _ROLE_KEYS[2:]))


def read_ranks(value: Any, available: int, key: str, what: str) -> tuple[int, ...]:
    """Read ranks from "0-7", "all", 3, "0,2,4-6" or a list of these. Returns them in increasing order.

    available: number of accelerators. what: their owner, for the error. Raises RunError with the shortfall, or if a
    rank is repeated.
    """
    if value is None or value == "all":
        return tuple(range(available))
    parts = value if isinstance(value, Sequence) and not isinstance(value, str) else str(value).split(",")
    ranks = [rank for part in parts for rank in _range(str(part).strip(), value, key)]
    if len(set(ranks)) < len(ranks):
        raise refused("A rank is named twice.", key, value, remedy="Name each accelerator once.")
    beyond = [rank for rank in ranks if rank >= available]
    if beyond:
        raise refused(
            f"Accelerator {_runs(beyond)} is requested, but {what} has {available} (ranks count from 0).",
            key,
            value,
            cause=f"{max(beyond) + 1 - available} more are needed.",
            remedy=f"Take ranks below {available}." if available else "Choose nodes that have accelerators.",
        )
    return tuple(sorted(ranks))


def _range(part: str, value: Any, key: str) -> range:
    first, dash, last = part.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
        raise refused(
            f"'{part}' names no accelerator ranks.",
            key,
            value,
            remedy="Write a range 0-7, a list 0,2,4-6, or all.",
        )
    return range(int(first), int(last or first) + 1)


def _runs(ranks: list[int]) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0])


def _check_keys(key: str, fields: Any, known: Sequence[str]) -> None:
    if not isinstance(fields, Mapping):
        raise refused(
            f"'{key}' must be a mapping.",
            key,
            fields,
            remedy=f"Its keys are {_list(known)}.",
        )
    for name in fields:
        if name not in known:
            raise refused(
                f"Unknown key '{key}.{name}'.",
                f"{key}.{name}",
                fields[name],
                remedy=_nearest(name, known),
            )


def _positive(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refused(
            f"{value!r} is not a positive whole number.",
            key,
            value,
            remedy="Give a count of at least 1.",
        )


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
    return f"Did you mean '{close[0]}'? Known: {_list(known)}." if close else f"Known: {_list(known)}."


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


def refused(
    message: str, key: str, value: object = None, cause: str | None = None, remedy: str | None = None
) -> RunError:
    """Return the error for a placement that cannot be met (exit status 3)."""
    return RunError(message, key, value, cause, remedy, ExitStatus.placement)
