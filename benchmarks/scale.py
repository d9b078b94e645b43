"""Time of the driver by the number of nodes: `python -m benchmarks.scale [nodes=2,8,64,512,1024]`.

The real planner, controller, waits, board and watchdog run against simulated workers: half of the nodes train, with 8
actor and 8 rollout workers each, half simulate, with 8 env workers. A simulated worker answers after the stated time of
a virtual clock; nothing waits in earnest, so what is measured is the processor time of the driver's own Python. Ray's
own cost of a call is left out and stated beside it, and so is what it takes to simulate Ray's wait. Sync times are
computed from the stated link: of an object store from which every rollout node fetches its own copy, and of the
collective, which broadcasts along a binomial tree.
"""

from __future__ import annotations

import heapq
import itertools
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.config.schema import RunConfig, WeightTransport
from rlrun.controller.future import Call, Future
from rlrun.data.messages import EnvTally, OpenWait, Spaces, WorkerStatus
from rlrun.observability.counter_totals import CounterTotals
from rlrun.observability.telemetry import Telemetry
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.placement.planner import plan
from rlrun.watchdog.watchdog import Watchdog
from rlrun.workers.env_worker import Collected

NODES = (2, 8, 64, 512, 1024)
ROUNDS = 5
PER_NODE = 8  # workers of a role on a node that has it
LATENCY_S = {"collect": 20.0, "update": 30.0, "broadcast": 5.0, "receive": 5.0}  # of the simulated workers
NO_TALLY = EnvTally(0, 0, 0, (), 0.0, ())
SPREAD = 0.2  # workers differ by so much, evenly
LINK_BYTES_S = 25e9 / 8
WEIGHT_BYTES = 15e9  # 7.5 B parameters in bf16
COMPUTED = ("Ray", "store", "tree")  # columns that are no measurement
RAY_CALL_S = 0.4e-3  # measured: 2,400-3,100 calls a second in bursts
A100 = Accelerator("NVIDIA A100-SXM4-80GB", 80 * 10**9, has_rt_cores=False)
RTX = Accelerator("NVIDIA GeForce RTX 4090", 24 * 10**9, has_rt_cores=True)


def main() -> None:
    """Print a row per number of nodes, and the growth of each column per node."""
    wanted = next((word.partition("=")[2] for word in sys.argv[1:] if word.startswith("nodes=")), "")
    sizes = [int(number) for number in wanted.split(",")] if wanted else NODES
    rounds = [[measured(num_nodes) for num_nodes in sizes] for _ in range(ROUNDS)]
    rows = [
        {name: statistics.median(row[name] for row in repeated) for name in repeated[0]}
        for repeated in zip(*rounds, strict=True)
    ]
    names = list(rows[0])
    print(f"{'nodes':>6}" + "".join(f"{name:>16}" for name in names))
    for num_nodes, row in zip(sizes, rows, strict=True):
        print(f"{num_nodes:>6}" + "".join(f"{row[name]:>16.4g}" for name in names))
    print("growth per node of what the driver does, from one row to the next; 1: as the number of nodes")
    names = [name for name in names if not name.startswith(COMPUTED)]
    for (small, before), (large, after) in itertools.pairwise(zip(sizes, rows, strict=True)):
        grown = {name: after[name] / max(1e-9, before[name]) / (large / small) for name in names}
        print(f"{large:>6}" + "".join(f"{grown[name]:>16.2f}" for name in names))
    print(f"load of the machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def measured(num_nodes: int) -> dict[str, float]:
    """Return CPU-seconds of the driver, bytes and virtual seconds."""
    from rlrun.cluster import waits
    from rlrun.controller.controller import Controller

    inventory, config = machines(num_nodes), configured(num_nodes)
    began = time.process_time()
    planned = plan(config, inventory)
    plan_s = time.process_time() - began
    clock = Clock()
    waits.ray = SimulatedRay(clock)
    with tempfile.TemporaryDirectory(prefix="rlrun-scale-") as folder:
        watchdog = Watchdog(config, Path(folder), Telemetry("driver/0"))
        workers = SimulatedWorkers(planned, clock, watchdog)
        controller = Controller(config, workers)
        cost = {"plan s": plan_s}
        controller.sync_weights(0)
        workers.num_calls = 0
        batch, cost["collect s"] = timed(lambda: controller.collect(0, policy_version=0), clock)
        _, cost["update s"] = timed(lambda: controller.update(0, batch), clock)
        _, cost["sync s"] = timed(lambda: controller.sync_weights(1), clock)
        cost |= board_costs(workers, watchdog)
        cost["calls a step"] = workers.num_calls
    cost["Ray's share s"] = workers.num_calls * RAY_CALL_S
    num_receivers = num_nodes // 2 - 1  # rollout nodes besides the one of actor rank 0
    cost["store sync s"] = num_receivers * WEIGHT_BYTES / LINK_BYTES_S
    cost["tree sync s"] = num_receivers.bit_length() * WEIGHT_BYTES / LINK_BYTES_S
    return cost


def board_costs(workers: SimulatedWorkers, watchdog: Watchdog) -> dict[str, float]:
    """Return the driver's cost of a round of the board, at most once a second, and the bytes of its answers."""
    statuses = workers.statuses()
    totals = CounterTotals()
    _, of_put = timed(lambda: (watchdog.board.put(statuses), totals.put(statuses), totals.total("env/chunk_steps")))
    _, of_expectations = timed(watchdog.expectations)
    look = watchdog.watch("trajectories", workers.statuses)
    names = [status.worker for status in statuses if status.worker.startswith("env/")]
    _, of_look = timed(lambda: look(names))
    num_bytes = sum(len(pickle.dumps(status, 5)) for status in statuses)
    return {"board s": of_put + of_expectations, "watchdog s": of_look, "board MB": num_bytes / 1e6}


def timed(work: Callable[[], Any], clock: Clock | None = None) -> tuple[Any, float]:
    """Return the result of a call and its CPU-seconds, without those of the virtual clock."""
    began = time.process_time() - (clock.cost_s if clock else 0.0)
    result = work()
    return result, time.process_time() - (clock.cost_s if clock else 0.0) - began


def machines(num_nodes: int) -> Inventory:
    """Return an inventory of half A100 and half RTX 4090 nodes."""
    train = [
        NodeInfo(f"train-{i}", f"10.1.{i // 250}.{i % 250}", 96, 10**12, (A100,) * 8) for i in range(num_nodes // 2)
    ]
    sim = [NodeInfo(f"sim-{i}", f"10.2.{i // 250}.{i % 250}", 64, 10**12, (RTX,) * 8) for i in range(num_nodes // 2)]
    return Inventory((*train, *sim))


def configured(num_nodes: int) -> RunConfig:
    """Return a configuration with 8 workers per node of each role."""
    config = RunConfig()
    workers = PER_NODE * num_nodes // 2
    config.actor.num_workers = config.rollout.num_workers = config.env.num_workers = workers
    config.env.num_envs = 4 * workers
    config.weight_sync.transport = WeightTransport.collective
    config.placement.nodes = {"train": {"accelerator": "A100"}, "sim": {"accelerator": "4090"}}
    config.placement.roles = {"actor": {"on": "train"}, "rollout": {"on": "train"}, "env": {"on": "sim"}}
    return config


class Clock:
    """Virtual seconds, and the CPU-seconds spent on advancing them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost_s = 0.0


@dataclass(frozen=True, eq=False)
class Reference:
    """Represents an answer that arrives at a virtual time."""

    number: int
    at: float
    value: Any


class SimulatedRay:
    """Ray's `wait` and `get` on references of the virtual clock."""

    def __init__(self, clock: Clock):
        self._clock = clock

    def wait(self, refs: Sequence[Reference], num_returns: int, timeout: float) -> tuple[list, list]:
        """Return as Ray does: when enough references are ready, or after the timeout."""
        clock, began = self._clock, time.process_time()
        reached = heapq.nsmallest(num_returns, (ref.at for ref in refs))[-1]
        clock.now = max(clock.now, min(reached, clock.now + timeout))
        ready = [ref for ref in refs if ref.at <= clock.now][:num_returns]
        clock.cost_s += time.process_time() - began
        return ready, []

    def get(self, ref: Reference, timeout: float) -> Any:
        """Return the value of a reference."""
        return ref.value


class SimulatedWorkers:
    """The `Workers` of a run, which answer after stated times."""

    def __init__(self, planned: Any, clock: Clock, watchdog: Watchdog):
        self.plan, self._clock, self._watchdog = planned, clock, watchdog
        self.sizes = {role: len(planned.of(role)) for role in ("env", "rollout", "actor")}
        self.num_calls = 0
        self._lifelines = {Reference(-i, float("inf"), None): slot.name for i, slot in enumerate(planned.slots, 1)}

    def _called(self, role: str, rank: int, method: str, value: Any, producers: tuple[str, ...] = ()) -> Future[Any]:
        self.num_calls += 1
        late = 1 + SPREAD * (rank / max(1, self.sizes[role] - 1))
        ref = Reference(self.num_calls, self._clock.now + LATENCY_S[method] * late, value)
        return Future(f"{role}/{rank}", method, ref, producers)

    def submit(self, role: str, rank: int, call: Call) -> Future[Any]:
        producers = tuple(argument.worker for argument in call.arguments if isinstance(argument, Future))
        return self._called(role, rank, call.method, {"update": {"loss": 0.0}}.get(call.method), producers)

    def converse(self, calls: Mapping[int, Call], num_returns: Mapping[int, int]) -> dict[int, tuple[Future[Any], ...]]:
        self.num_calls += self.sizes["rollout"]  # a collection has members
        return {
            rank: tuple(
                self._called("env", rank, call.method, Collected([], 64, 0, NO_TALLY)) for _ in range(num_returns[rank])
            )
            for rank, call in calls.items()
        }

    def wait(self, futures: Sequence[Future[Any]], subject: str, deadline_s: float) -> list:
        return self.outcomes(futures, subject, deadline_s, None)

    def outcomes(self, futures: Sequence[Future[Any]], subject: str, deadline_s: float, on_failure: Any) -> list:
        from rlrun.cluster.waits import wait_for

        for future in futures:
            self._watchdog.board.expect(future.worker, future.producers)
        labels = {future.reference: f"{future.worker}.{future.method}" for future in futures}
        return wait_for(labels, subject, deadline_s, self._watchdog.driver, None, self._lifelines, on_failure)

    def share_memory(self, role: str, rank: int, other: str) -> bool:
        return False

    def statuses(self) -> list[WorkerStatus]:
        """As a worker tells in the middle of a step; env workers wait for their rollout worker."""
        told = []
        for slot in self.plan.slots:
            waits = (OpenWait("actions", (f"rollout/{slot.rank}",), 0.4, 1200.0),) if slot.role == "env" else ()
            phase = {"env": "wait for actions", "rollout": "act", "actor": "idle"}[slot.role]
            counters = {"chunk_steps": 640, "env_steps": 2560, "chunks": 640}
            silences = {"load, first": (1, 20.0), "simulate": (1, 0.4), "act": (1, 0.1)}
            told.append(
                WorkerStatus(
                    slot.name, slot.node, 1000 + slot.rank, phase, 0.3, counters, 10**9, waits=waits, silences=silences
                )
            )
        return told

    def load(self) -> Spaces:
        raise NotImplementedError


if __name__ == "__main__":
    main()
