"""Every shipped placement on 1, 2 and 3 nodes with 1, 2 and 8 GPUs each, through plan, doctor and launch."""

from __future__ import annotations

import functools
from itertools import product
from pathlib import Path

import pytest

from rlrun.config.composition import SHIPPED
from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.doctor.node_request import node_requests
from rlrun.doctor.trials import members, planned_pairs
from rlrun.placement.choices import choose
from rlrun.placement.inventory import Accelerator, Interface, Inventory, NodeInfo
from rlrun.placement.node_environment import node_environment
from rlrun.placement.workload import Workload
from rlrun.system.errors import ExitStatus, RunError

A100 = Accelerator("NVIDIA A100-SXM4-80GB", 80 * 10**9, has_rt_cores=False)
RTX = Accelerator("NVIDIA GeForce RTX 4090", 24 * 10**9, has_rt_cores=True)
PORT = 29500
PLACEMENTS = sorted(path.stem for path in (SHIPPED / "placement").glob("*.yaml"))
LAYOUTS = list(product((1, 2, 3), (1, 2, 8)))
FIT = {  # (nodes, GPUs of each); the planner refuses all others for lack of accelerators or nodes
    "colocated": [(1, 8), (2, 8), (3, 8)],
    "disaggregated": [(1, 8), (2, 8), (3, 8)],
    "dual_node": [(2, 8), (3, 8)],
    "single_node": [layout for layout in LAYOUTS if layout != (1, 1)],
    "three_nodes": [(3, 8)],
}


def fits(placement: str, layout: tuple[int, int]) -> bool:
    """Return whether the machines have room for the placement."""
    return layout in FIT[placement]


@functools.cache
def configured(placement: str, transport: str) -> RunConfig:
    return load([f"+placement={placement}", f"weight_sync.transport={transport}", f"cluster.store_port={PORT}"])


def cluster(num_nodes: int, num_gpus: int) -> Inventory:
    """Return a node of A100s and further nodes of RTX 4090s; the interface of node i is eth<i>."""
    nodes = []
    for i, name in enumerate(("train-0", "sim-0", "sim-1")[:num_nodes]):
        own, address = (RTX if i else A100,) * num_gpus, f"10.77.0.{i + 1}"
        nodes.append(NodeInfo(name, address, 64, 10**12, own, (Interface(f"eth{i}", (address,)),)))
    return Inventory(tuple(nodes))


@pytest.mark.parametrize(("placement", "layout"), [pair for pair in product(PLACEMENTS, LAYOUTS) if not fits(*pair)])
def test_machines_that_are_too_few_are_refused(placement: str, layout: tuple[int, int]) -> None:
    config, machines = configured(placement, "object_store"), cluster(*layout)
    with pytest.raises(RunError) as refusal:
        choose(Workload(config), machines)
    assert refusal.value.exit_status == ExitStatus.placement


@pytest.mark.parametrize("transport", ["object_store", "collective"])
@pytest.mark.parametrize(("placement", "layout"), [pair for pair in product(PLACEMENTS, LAYOUTS) if fits(*pair)])
def test_every_worker_of_a_placement(placement: str, layout: tuple[int, int], transport: str) -> None:
    config, machines = configured(placement, transport), cluster(*layout)
    planned = choose(Workload(config), machines).plan
    actors, rollouts = planned.of("actor"), planned.of("rollout")

    assert planned.training_backend.value == "nccl"  # every rank has an accelerator of its own
    places = [(slot.node, slot.accelerators[0]) for slot in actors]
    assert len(set(places)) == len(places)
    synced = [(slot.node, slot.accelerators[:1]) for slot in (actors[0], *rollouts)]
    is_apart = len(set(synced)) == len(synced) and all(device for _, device in synced)
    assert planned.sync_backend.value == ("nccl" if is_apart else "gloo")

    for slot in planned.slots:  # as launch sets it on the worker's node
        node = machines.node(slot.node)
        assert slot.address == node.address and set(slot.accelerators) <= set(range(layout[1]))
        environment = node_environment(slot, node.interfaces[0], config, Path("/runs/x"))
        assert environment["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, slot.accelerators))
        assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        name = node.interfaces[0].name
        assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == (name, f"={name}")

        dump = f"/runs/x/flight_recorder/{slot.role}-{slot.rank}_" if slot.role != "env" and slot.accelerators else None
        assert environment.get("TORCH_FR_DUMP_TEMP_FILE") == dump

    for backend in ("gloo", "nccl"):  # as the doctor tries it
        group = members(config, planned, backend)
        found = {member.name: member for member in group}
        assert not group or group[0].node == actors[0].node  # where the store listens
        for a, b in planned_pairs(list(found)):
            one, other = found[a], found[b]
            if backend == "nccl":
                assert (one.node, one.accelerator) != (other.node, other.accelerator)
            else:
                assert one.accelerator is other.accelerator is None
    for told in node_requests(config, machines, planned, is_thorough=True):
        here = [slot for slot in planned.slots if slot.node == told.node]
        assert told.workers == {
            role: n for role in ("actor", "rollout", "env") if (n := sum(s.role == role for s in here))
        }
        store = [PORT] * (len(actors) > 1) + [PORT + 1] * (transport == "collective")
        assert [port.port for port in told.ports] == (store if actors[0] in here else [])
