"""Reserves the plan's accelerators and cores on a Ray cluster that other jobs may use.

Each job has one placement group with one bundle per node: as many GPUs as the job's workers use there, and cores for
the workers. Ray counts GPUs but does not let a job choose them. The group's name therefore lists the indices on every
node, and a job that finds one of its indices in the name of another job's group removes its group, waits, and tries
again. A job creates its group before it reads the others, so that of two jobs that start at once at least one sees the
other. Ray removes a group when its job ends for any reason.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlrun.cluster.ray_nodes import RayNode, ray_nodes
from rlrun.config.schema import RunConfig
from rlrun.placement.inventory import Inventory
from rlrun.placement.plan import Plan, Slot
from rlrun.placement.planner import replanned
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.telemetry import mark_alive
from rlrun.system.user import user_name

_POLL_S = 1.0
_GONE = "REMOVED"
_PLACED = "CREATED"
_THREADS = "OMP_NUM_THREADS"
_WORD_S = 10.0  # between two words on where the lost nodes are, since a link may flap
_KEY = "recovery.node_wait_s"


@dataclass(frozen=True)
class Claim:
    """The accelerators that a job holds, as the name of its placement group lists them.

    Example: Claim("train /data/runs/radio, anna@train-0, process 4711", {"2704790c…": [0, 1, 2, 3]})
    """

    holder: str
    accelerators: dict[str, list[int]]  # Ray node id -> indices

    def overlap(self, other: Claim) -> dict[str, list[int]]:
        """Return the indices that both claims have, per node."""
        shared = {node: sorted(set(mine) & set(other.accelerators.get(node, ()))) for node, mine in self._items()}
        return {node: indices for node, indices in shared.items() if indices}

    def _items(self) -> list[tuple[str, list[int]]]:
        return list(self.accelerators.items())


class Reservation:
    """Holds the resources of a plan's slots from `__init__` to `close`, or to the end of this process.

    note: receives one sentence with the reason if it has to wait. earlier: reservations that the same run already has.
    Raises RunError (exit status 3) at once if the cluster can never provide them, and after `deadline_s`, naming the
    other jobs that hold them.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        nodes: Mapping[str, RayNode],
        purpose: str,
        deadline_s: float,
        note: Callable[[str], None] = lambda text: None,
        earlier: Sequence[Reservation] = (),
    ):
        self._names = list(dict.fromkeys(slot.node for slot in slots))
        self._nodes = [nodes[name] for name in self._names]
        there = [[slot for slot in slots if slot.node == node.name] for node in self._nodes]
        held_before = [set().union(*(other.held(node) for other in earlier)) for node in self._nodes]
        fresh = [sorted(set(_held(here)) - mine) for here, mine in zip(there, held_before, strict=True)]
        self._bundles = [_bundle(*each) for each in zip(there, fresh, self._nodes, strict=True)]
        for node, bundle in zip(self._nodes, self._bundles, strict=True):
            _check_possible(node, bundle)
        holder = f"{purpose}, {user_name()}@{socket.gethostname()}, process {os.getpid()}"
        held = {node.node_id: indices for node, indices in zip(self._nodes, fresh, strict=True)}
        self._claim = Claim(holder, {node: indices for node, indices in held.items() if indices})
        self._deadline_s = deadline_s
        self._group: PlacementGroup | None = None
        self._acquire(note)

    def held(self, node: RayNode) -> set[int]:
        """Return the accelerators that this reservation holds on a node."""
        return set(self._claim.accelerators.get(node.node_id, ()))

    def covers(self, slot: Slot, node: RayNode) -> bool:
        """Return whether this reservation holds all that a worker at `slot` of `node` needs."""
        is_here = node.node_id in {mine.node_id for mine in self._nodes}
        return is_here and set(slot.accelerators) <= self.held(node)

    def scheduling(self, slot: Slot) -> PlacementGroupSchedulingStrategy:
        """Return the strategy that places a worker into its node's bundle."""
        if self._group is None:
            raise RuntimeError("the reservation is closed")
        return PlacementGroupSchedulingStrategy(self._group, self._names.index(slot.node))

    def close(self) -> None:
        """Release the resources. Safe to call twice."""
        if self._group is not None and ray.is_initialized():
            remove_placement_group(self._group)
        self._group = None

    def _acquire(self, note: Callable[[str], None]) -> None:
        end = time.monotonic() + self._deadline_s
        is_reported = False
        while not self._try(min(_POLL_S, self._deadline_s)):
            mark_alive()
            self._require_nodes()
            reason = self._reason()
            if time.monotonic() >= end:
                self.close()
                raise self._refusal(reason)
            if not is_reported:
                note(f"waiting up to {self._deadline_s:.0f} s for resources: {reason}")
                is_reported = True

    def _try(self, timeout_s: float) -> bool:
        """Create the group, look for claims of others, and only then wait for Ray."""
        if self._group is None:
            self._group = placement_group(
                self._bundles,
                strategy="PACK",
                name=json.dumps(asdict(self._claim)),
                bundle_label_selector=[{"ray.io/node-id": node.node_id} for node in self._nodes],
            )
        if self._rivals():
            self.close()
            time.sleep(random.uniform(0.1, 1.0) * timeout_s)  # so that two jobs do not collide again and again
            return False
        return self._group.wait(timeout_s)

    def _require_nodes(self) -> None:
        """Raise RunError if a node has left the cluster, for which Ray would wait without end."""
        living = {node.node_id for node in ray_nodes()}
        left = [node.name for node in self._nodes if node.node_id not in living]
        if left:
            self.close()
            raise RunError(
                f"Node {', '.join(left)} left the cluster while its resources were reserved.",
                cause="Its power, its Ray or its link is gone.",
                remedy="Start Ray there again, then resume the run.",
                exit_status=ExitStatus.worker_lost,
            )

    def _rivals(self) -> list[Claim]:
        return [claim for claim in other_claims(self._group) if self._claim.overlap(claim)]

    def _reason(self) -> str:
        names = {node.node_id: node.name for node in self._nodes}
        clashes = [
            f"accelerators {_list(indices)} of {names[node]} are held by {claim.holder}"
            for claim in other_claims(self._group)
            for node, indices in self._claim.overlap(claim).items()
        ]
        return "; ".join(clashes or self._shortfalls()) or _unplaced()

    def _shortfalls(self) -> list[str]:
        """Describe the nodes with fewer free resources than the job wants, and the jobs of rlrun on them."""
        taken = _taken()
        shortfalls = []
        for node, bundle in zip(self._nodes, self._bundles, strict=True):
            left = {kind: total - taken[node.node_id][kind] for kind, total in _totals(node).items()}
            short = [
                f"{wanted:g} {kind} wanted, {left[kind]:g} free"
                for kind, wanted in bundle.items()
                if left.get(kind, wanted) < wanted
            ]
            if short:
                there = [claim.holder for claim, where in _placed_claims(self._group) if node.node_id in where]
                holders = ", ".join(there) or "work that is not rlrun"
                shortfalls.append(f"{node.name}: {', '.join(short)}; held by {holders}")
        return shortfalls

    def _refusal(self, reason: str) -> RunError:
        return RunError(
            f"The cluster had no room for this run within {self._deadline_s:.0f} s.",
            "cluster.placement_deadline_s",
            self._deadline_s,
            cause=reason,
            remedy="Wait for the other job or end it, choose other accelerators in placement.roles, or raise "
            "cluster.placement_deadline_s.",
            exit_status=ExitStatus.placement,
        )


def other_claims(mine: PlacementGroup | None = None) -> list[Claim]:
    """Return the claims of the other jobs of rlrun on this cluster."""
    return [claim for claim, _ in _placed_claims(mine)]


def _placed_claims(mine: PlacementGroup | None) -> list[tuple[Claim, set[str]]]:
    """Return the claims, each with the nodes on which Ray has placed it."""
    claims = []
    for entry in placement_group_table().values():
        claim = _read(entry["name"])
        is_mine = mine is not None and entry["placement_group_id"] == mine.id.hex()
        if claim is not None and not is_mine and entry["state"] != _GONE:
            claims.append((claim, set(entry["bundles_to_node_id"].values())))
    return claims


def _totals(node: RayNode) -> dict[str, float]:
    return {"CPU": node.num_cpus, "GPU": node.num_gpus}


def _taken() -> dict[str, Counter[str]]:
    """Return the resources that placement groups, of rlrun or not, hold on each node, by Ray node id."""
    taken: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in placement_group_table().values():
        if entry["state"] == _PLACED:
            for index, node in entry["bundles_to_node_id"].items():
                taken[node].update(entry["bundles"][index])
    return taken


def _unplaced() -> str:
    """Describe the free resources; tasks and actors outside any placement group may hold the rest."""
    free = ray.available_resources()
    left = ", ".join(f"{free.get(kind, 0.0):g} {kind}" for kind in ("GPU", "CPU"))
    return f"Ray has not placed the job yet; free in the whole cluster: {left}"


def _read(name: str) -> Claim | None:
    """Read the name of a placement group; None if the group is not rlrun's."""
    try:
        return Claim(**json.loads(name))
    except (ValueError, TypeError):
        return None


def _held(slots: Sequence[Slot]) -> list[int]:
    return sorted({index for slot in slots for index in slot.accelerators})


def _bundle(slots: Sequence[Slot], accelerators: Sequence[int], node: RayNode) -> dict[str, float]:
    """Return the resources for the workers of one node.

    Workers that share an accelerator reserve it once, as a whole. The cores are the threads of the workers, but not
    more than the share of the node's accelerators that the job holds.
    """
    held = len(accelerators)
    threads = sum(int(setting.value) for slot in slots for setting in slot.environment if setting.name == _THREADS)
    share = held / node.num_gpus if held and node.num_gpus else 1.0
    wanted = {"GPU": float(held), "CPU": float(min(threads, int(node.num_cpus * share)))}
    return {f"node:{node.address}": 0.001} | {kind: amount for kind, amount in wanted.items() if amount}


def _check_possible(node: RayNode, bundle: dict[str, float]) -> None:
    wanted = int(bundle.get("GPU", 0))
    if wanted > node.num_gpus:
        raise RunError(
            f"The plan takes {wanted} accelerators of node {node.name}; its Ray has {node.num_gpus}: "
            f"{wanted - node.num_gpus} short.",
            "placement.roles",
            cause="Ray on that node was started with fewer GPUs than the node has, or the inventory names more.",
            remedy="Start Ray there with `python -m rlrun.node start`, which declares what the node has.",
            exit_status=ExitStatus.placement,
        )


def _list(indices: list[int]) -> str:
    return ", ".join(map(str, indices))


def next_plan(
    config: RunConfig,
    old: Plan,
    lost: Collection[str],
    living: Callable[[], list[RayNode]],
    measure: Callable[[Sequence[RayNode]], Inventory],
    note: Callable[[str], None],
    is_stopped: Callable[[], bool],
    node_state: Callable[[], str] = str,
) -> tuple[Plan, dict[str, RayNode]]:
    """Return the first plan that fits on the living nodes, and these nodes by name.

    living: returns the nodes of the cluster. measure: returns their inventory. note: receives a sentence if it has to
    wait, and why. is_stopped: returns whether a person or the scheduler asked to stop, which ends the wait.
    node_state: returns the state of the lost nodes, in words, which are noted when they change.
    Raises RunError: exit status 7 after `recovery.node_wait_s`, 75 if asked to stop.
    """
    search = _PlanSearch(config, old, lost, measure, note)
    while True:
        nodes = living()
        plan = search.attempt(nodes)
        if plan is not None:
            return plan, {node.name: node for node in nodes}
        search.note_state(node_state())
        if is_stopped():
            raise RunError(
                f"Asked to stop while node {search.names} was lost.",
                remedy="Resume the run from its last checkpoint.",
                exit_status=ExitStatus.preempted,
            )
        search.check_time()
        mark_alive()
        time.sleep(_POLL_S)


class _PlanSearch:
    """Attempts to plan a run without its lost nodes, which remember what was refused and what was noted."""

    def __init__(
        self,
        config: RunConfig,
        old: Plan,
        lost: Collection[str],
        measure: Callable[[Sequence[RayNode]], Inventory],
        note: Callable[[str], None],
    ):
        self.names = ", ".join(sorted(lost))
        self._config = config
        self._old = old
        self._lost = lost
        self._measure = measure
        self._note = note
        self._wait_s = config.recovery.node_wait_s
        self._end = time.monotonic() + self._wait_s
        self._tried: set[str] = set()  # node ids of the last attempt
        self._refusal: RunError | None = None
        self._noted: set[str] = set()
        self._last_state = ""
        self._next_state_at = time.monotonic()

    def attempt(self, nodes: Sequence[RayNode]) -> Plan | None:
        """Return the plan on these nodes; None if they are those of the last attempt, or do not suffice."""
        node_ids = {node.node_id for node in nodes}
        if node_ids == self._tried:
            return None
        self._tried = node_ids
        try:
            return replanned(self._config, self._old, self._measure(nodes), self._lost)
        except RunError as error:
            self._refused(error)
        return None

    def _refused(self, error: RunError) -> None:
        if error.exit_status is not ExitStatus.placement:
            self._tried = set()  # a node left while it was measured: try again
            self._note_once(f"and the others are not measured yet: {error.message}; again")
        elif self._refusal is None or self._refusal.exit_status is not ExitStatus.placement:
            self._note_once(f"and without it: {error.message} Waiting up to {self._wait_s:.0f} s for it")
        self._refusal = error

    def _note_once(self, text: str) -> None:
        if text not in self._noted and self._wait_s > 0:
            self._noted.add(text)
            self._note(f"node {self.names} is lost, {text}")

    def note_state(self, state: str) -> None:
        """Note the state of the lost nodes when it changes, at most once in `_WORD_S`."""
        if self._wait_s > 0 and state not in ("", self._last_state) and time.monotonic() >= self._next_state_at:
            self._last_state = state
            self._next_state_at = time.monotonic() + _WORD_S
            self._note(state)

    def check_time(self) -> None:
        """Raise RunError once `recovery.node_wait_s` has passed."""
        if time.monotonic() >= self._end:
            raise _gave_up(self.names, self._wait_s, self._refusal)


def _gave_up(names: str, wait_s: float, refusal: RunError | None) -> RunError:
    waited = f", and has not come back within {wait_s:.0f} s" if wait_s else ""
    return RunError(
        f"Node {names} has left the cluster{waited}; the run does not fit on what is left.",
        key=_KEY,
        value=wait_s,
        cause=f"Its power, its Ray or its link is gone. {refusal.message if refusal else ''}",
        remedy=f"Start Ray on {names} again, then resume the run. To go on without "
        "the node, leave it out of `placement`.",
        exit_status=ExitStatus.worker_lost,
    )
