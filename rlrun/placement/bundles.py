"""The resources of workers, and whether the hardware suits their roles; the backends of collectives that it allows."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from rlrun.config.schema import ClusterKind, RunConfig
from rlrun.placement.inventory import Accelerator, NodeInfo
from rlrun.placement.plan import Choice, GroupRequest, refused


@dataclass(frozen=True)
class Member:
    """A node and the group that claimed it."""

    node: NodeInfo
    group: GroupRequest


@dataclass(frozen=True)
class Bundle:
    """Resources of one worker: accelerator indices on a node; without accelerators it runs on the cores."""

    member: Member
    accelerators: tuple[int, ...]
    why: str

    @property
    def devices(self) -> list[Accelerator]:
        return [self.member.node.accelerators[index] for index in self.accelerators]


Bundles = dict[str, list[Bundle]]  # role -> those of its workers, by rank


def check_hardware(config: RunConfig, needs_rt_cores: bool, bundles: Bundles) -> None:
    """Raise RunError if a role would get accelerators that do not suit it, or workers would share one in vain.

    needs_rt_cores: whether the simulator does.
    """
    for rank, bundle in enumerate(bundles["env"]):
        if needs_rt_cores:
            _check_rt_cores(config.env.simulator, rank, bundle)
    for rank, bundle in enumerate(bundles["rollout"]):
        models = {device.model for device in bundle.devices}
        if len(models) > 1:
            raise refused(
                f"rollout/{rank} would span unlike accelerators: {', '.join(sorted(models))}.",
                "placement.roles.rollout",
                cause="A tensor-parallel group runs at the pace, and with the memory, of its weakest member.",
                remedy="Choose ranks of one model.",
            )
    users = Counter((bundle.member.node.name, index) for bundle in bundles["actor"] for index in bundle.accelerators)
    for (node, index), count in users.items():
        if count > 1:
            raise refused(
                f"{count} actor ranks share accelerator {index} of node {node}.",
                "actor.num_workers",
                len(bundles["actor"]),
                cause="NCCL allows one rank per accelerator.",
                remedy=f"Set actor.num_workers={len(users)}.",
            )
    if config.cluster.kind is not ClusterKind.local:  # where all workers are one process
        _check_compute_modes(needs_rt_cores, bundles)


def _check_compute_modes(needs_rt_cores: bool, bundles: Bundles) -> None:
    """Raise RunError if an accelerator would get more processes than its compute mode lets compute there.

    Simulators that ray-trace compute by CUDA as well; others only draw, which every mode allows.
    """
    roles = [role for role in bundles if role != "env" or needs_rt_cores]
    users: dict[tuple[str, int], list[str]] = defaultdict(list)
    limits: dict[tuple[str, int], int] = {}
    for role in roles:
        for rank, bundle in enumerate(bundles[role]):
            for index, device in zip(bundle.accelerators, bundle.devices, strict=True):
                place = bundle.member.node.name, index
                users[place].append(f"{role}/{rank}")
                if device.max_processes is not None:
                    limits[place] = device.max_processes
    for (node, index), limit in limits.items():
        workers = users[node, index]
        mode = "EXCLUSIVE_PROCESS" if limit else "PROHIBITED"
        if len(workers) > limit:
            raise refused(
                f"{' and '.join(workers)} would compute on accelerator {index} of node {node}, which lets "
                f"{'one process' if limit else 'no process'} compute.",
                "placement.roles",
                cause=f"Its compute mode is {mode} (`nvidia-smi -q -d COMPUTE`).",
                remedy=f"`nvidia-smi -i {index} -c DEFAULT` on {node}, as root; or give each accelerator "
                f"{'one worker' if limit else 'no worker'}.",
            )


def _check_rt_cores(simulator: str, rank: int, bundle: Bundle) -> None:
    if bundle.devices and all(device.has_rt_cores for device in bundle.devices):
        return
    have = bundle.devices[0].model if bundle.devices else "no accelerator"
    raise refused(
        f"env/{rank} would simulate on node {bundle.member.node.name} with {have}, which has no RT cores.",
        "placement.roles.env",
        cause=f"{simulator} ray-traces its cameras; without RT cores images show severe artefacts or are missing.",
        remedy="Put env on RTX accelerators (such as RTX 4090, L40S, A6000), or take another env.simulator.",
    )


def check_interfaces(bundles: Bundles) -> None:
    """Check that each node has the interface of its group, if the inventory lists interfaces."""
    members = {bundle.member.node.name: bundle.member for role_bundles in bundles.values() for bundle in role_bundles}
    for name, member in members.items():
        wanted = member.group.interface
        here = member.node.interfaces
        if wanted is None or not here or wanted in [interface.name for interface in here]:
            continue
        raise refused(
            f"Node {name} has no interface '{wanted}' with an IPv4 address.",
            f"placement.nodes.{member.group.name}.interface",
            wanted,
            cause=f"{name} has {', '.join(f'{i.name} ({i.addresses[0]})' for i in here)}.",
            remedy="Remove the key: rlrun then uses the interface that owns the route to the head. Put nodes with "
            "other interface names into groups of their own.",
        )


def backends(bundles: Bundles) -> tuple[Choice, Choice]:
    """Choose NCCL for a group whose ranks all have accelerators of their own, else Gloo."""
    if not bundles["actor"]:
        none = Choice("gloo", "no actor rank is planned")
        return none, none
    if not all(bundle.accelerators for bundle in bundles["actor"]):
        no = Choice("gloo", "actor ranks train on the CPU")
        return no, no
    if any(bundle.devices[0].is_fake for bundle in bundles["actor"]):
        no = Choice("gloo", "the accelerators are declared for a test and do not exist")
        return no, no
    training = Choice("nccl", "every actor rank has an accelerator of its own")
    group = [bundles["actor"][0], *bundles["rollout"]]
    places = [(bundle.member.node.name, index) for bundle in group for index in bundle.accelerators[:1]]
    if len(places) == len(group) == len(set(places)):
        return training, Choice("nccl", "actor rank 0 and the rollout workers have accelerators of their own")
    return training, Choice("gloo", "NCCL needs an accelerator for each of actor rank 0 and the rollout workers")
