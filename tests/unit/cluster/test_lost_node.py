"""A run goes on without a lost node, waits for it, or gives up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.exceptions import TaskUnschedulableError

from rlrun.cluster import reservation, waits
from rlrun.cluster.ray_nodes import RayNode
from rlrun.config.schema import RunConfig
from rlrun.placement.inventory import Inventory, NodeInfo
from rlrun.placement.planner import plan
from rlrun.placement.workload import Workload
from rlrun.system.errors import ExitStatus, RunError

NODES = {name: NodeInfo(name, f"10.77.0.{i}", 8, 64 * 10**9, ()) for i, name in enumerate(("train", "sim"), start=1)}


def ray_node(name: str, life: int) -> RayNode:
    return RayNode(name, f"{name}#{life}", NODES[name].address, 8, 0, name == "train")


@pytest.fixture
def lost(monkeypatch):
    """`sim`, which the plan needs, is lost; call with the living nodes, second by second; the last ones stay."""
    config = RunConfig()
    config.recovery.node_wait_s = 30.0
    config.placement.nodes = {"train": {"names": "train"}, "sim": {"names": "sim"}}
    config.placement.roles = {"actor": {"on": "train"}, "rollout": {"on": "train"}, "env": {"on": "sim"}}
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(reservation.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(reservation.time, "sleep", lambda seconds: setattr(clock, "now", clock.now + seconds))
    notes, stop = [], SimpleNamespace(at_s=float("inf"))

    def call(*lives: list[RayNode], measure=lambda nodes: Inventory(tuple(NODES[node.name] for node in nodes)), **more):
        def living():
            return lives[min(int(clock.now), len(lives) - 1)]

        old = plan(Workload(config), Inventory(tuple(NODES.values())))
        is_stopped = lambda: clock.now >= stop.at_s  # noqa: E731
        return reservation.next_plan(config, old, ["sim"], living, measure, notes.append, is_stopped, **more)

    return SimpleNamespace(call=call, notes=notes, clock=clock, config=config, stop=stop)


TRAIN, SIM_AGAIN = ray_node("train", 1), ray_node("sim", 2)


def test_a_node_that_comes_back(lost):
    found, nodes = lost.call([TRAIN], [TRAIN], [TRAIN, SIM_AGAIN])
    assert lost.clock.now == 2.0 and nodes["sim"].node_id == "sim#2"
    assert {slot.node for slot in found.of("env")} == {"sim"}
    (note,) = lost.notes
    assert note.startswith("node sim is lost, and without it: Node group 'sim' needs 1 node named sim, 0 free")
    assert note.endswith("Waiting up to 30 s for it")


@pytest.mark.parametrize("wait_s", [30.0, 0.0])
def test_at_the_deadline_the_run_ends_with_a_correct_message(lost, wait_s):
    lost.config.recovery.node_wait_s = wait_s
    with pytest.raises(RunError, match=r"Node sim has left the cluster.* does not fit on what is left") as raised:
        lost.call([TRAIN])
    assert lost.clock.now == wait_s and bool(lost.notes) == bool(wait_s)
    assert raised.value.exit_status is ExitStatus.worker_lost and raised.value.key == "recovery.node_wait_s"


def test_a_node_that_leaves_while_it_is_measured_is_measured_again(lost):
    answers = iter([RunError("late: sim", exit_status=ExitStatus.stalled), Inventory(tuple(NODES.values()))])

    def measure(nodes):
        answer = next(answers)
        if isinstance(answer, RunError):
            raise answer
        return answer

    assert lost.call([TRAIN, SIM_AGAIN], measure=measure) and lost.clock.now == 1.0
    assert lost.notes == ["node sim is lost, and the others are not measured yet: late: sim; again"]


def test_a_node_that_leaves_twice_is_waited_for_twice(lost):
    """It comes back, leaves while it is measured, which Ray reports in any of its ways, and comes back for good."""
    answers = iter([waits.lost("sim.probe", TaskUnschedulableError("no such node")), None])

    def measure(nodes):
        if len(nodes) > 1 and (failure := next(answers)) is not None:
            raise failure
        return Inventory(tuple(NODES[node.name] for node in nodes))

    found, nodes = lost.call([TRAIN], [TRAIN, SIM_AGAIN], [TRAIN], [TRAIN, ray_node("sim", 3)], measure=measure)
    assert nodes["sim"].node_id == "sim#3" and {slot.node for slot in found.of("env")} == {"sim"}
    assert len(lost.notes) == 2 and "its node left the cluster" in lost.notes[1]


def test_what_became_of_the_node_is_said_when_it_changes(lost):
    lost.call(*[[TRAIN]] * 25, [TRAIN, SIM_AGAIN], node_state=lambda: "up" if lost.clock.now % 15 < 6 else "down")
    assert lost.notes[1:] == ["up", "down", "up"], "at 0, 10 and 20 s"


def test_a_request_to_stop_ends_the_wait(lost):
    lost.stop.at_s = 3.0
    with pytest.raises(RunError, match="Asked to stop while node sim was lost") as raised:
        lost.call([TRAIN])
    assert lost.clock.now == 3.0 and raised.value.exit_status is ExitStatus.preempted
