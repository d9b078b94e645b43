"""Joining has a deadline and names rank, address and remedy."""

from __future__ import annotations

import errno
import os
import socket
import time

import pytest
import torch
import torch.distributed as dist

from rlrun.actor import process_group
from rlrun.config.schema import RunConfig, ShardingStrategy
from rlrun.system.errors import RunError
from tests import processes
from tests.unit.actor.rank_pool import RankPool, free_port
from tests.unit.actor.tiny_run import learner, tiny_config


def _join_alone(rank: int, port: int, pipe) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    began = time.monotonic()
    with pytest.raises(RunError) as error:
        process_group.join(rank, 2, "127.0.0.1", port, "gloo", 2.0)
    pipe.send((str(error.value), time.monotonic() - began, dist.is_initialized()))


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_missing_peer_is_reported_at_the_deadline(rank: int) -> None:
    context = processes.context()
    ours, theirs = context.Pipe()
    port = free_port()
    process = context.Process(target=_join_alone, args=(rank, port, theirs))
    process.start()
    assert ours.poll(60), "the rank waits for ever"
    text, seconds, is_initialized = ours.recv()
    process.join()
    assert f"Actor rank {rank} of 2 could not join the process group at 127.0.0.1:{port} within 2 s" in text
    assert "remedy:" in text
    assert seconds < 20
    assert not is_initialized


def _hold(rank: int, port: int, is_over) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    process_group.join(rank, 2, "127.0.0.1", port, "gloo", 60.0)
    is_over.wait(60)


def test_the_meeting_point_listens_on_the_address_of_the_plan_only() -> None:
    """torch's own store listens on every address; 127.0.0.2 represents another interface."""
    context = processes.context()
    port, is_over = free_port(), context.Event()
    ranks = [context.Process(target=_hold, args=(rank, port, is_over)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    end = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert socket.socket().connect_ex(("127.0.0.2", port)) == errno.ECONNREFUSED
    is_over.set()
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0


def test_a_store_that_cannot_be_opened_is_reported_at_once() -> None:
    context = processes.context()
    ours, theirs = context.Pipe()
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        process = context.Process(target=_join_alone, args=(0, port, theirs))
        process.start()
        assert ours.poll(60), "the rank waits for ever"
        text, seconds, _ = ours.recv()
        process.join()
    assert "gave up after" in text and "within" not in text.splitlines()[0] and seconds < 2
    assert "another cluster.store_port" in text


def test_backends_reduce_offloaded_tensors_too() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert process_group.torch_backend("gloo", cpu) == process_group.torch_backend("gloo", cuda) == "gloo"
    assert process_group.torch_backend("nccl", cuda) == "cpu:gloo,cuda:nccl"
    with pytest.raises(RunError, match="torch sees none here"):
        process_group.torch_backend("nccl", cpu)


def reduced() -> tuple:
    ranks = process_group.Ranks(torch.device("cpu"))
    own = torch.tensor([float(ranks.rank + 1)])
    return (
        float(ranks.sum(own)),
        float(own),
        ranks.any(ranks.rank == 1),
        ranks.any(ranks.rank == 0),
        ranks.any(False),
        ranks.gather(ranks.rank),
    )


def test_reductions_leave_their_argument_alone(two_ranks: RankPool) -> None:
    assert two_ranks.run(reduced) == [(3.0, 1.0, True, True, False, [0, 1]), (3.0, 2.0, True, True, False, [0, 1])]


def group_timeouts(config: RunConfig) -> list[float]:
    actor = learner(config)
    groups = actor.sharded.mesh.get_all_groups()
    return [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups]


def test_subgroups_of_the_mesh_have_the_deadline(two_ranks: RankPool) -> None:
    config = tiny_config(sharding=ShardingStrategy.hybrid_shard, fsdp_size=2)
    config.cluster.start_deadline_s = 45.0
    for timeouts in two_ranks.run(group_timeouts, config):
        assert timeouts == [45.0, 60.0]  # the second is the default group, which the tests' own pool formed


def groups_are_the_default_one(config: RunConfig) -> list[bool]:
    actor = learner(config)
    return [group is dist.distributed_c10d._get_default_group() for group in actor.sharded.mesh.get_all_groups()]


def test_ranks_that_shard_over_all_form_no_group_but_that_of_all(two_ranks: RankPool) -> None:
    """Every group of Gloo has threads of its own, which wake up a hundred times a second."""
    config = tiny_config(sharding=ShardingStrategy.full_shard)
    assert two_ranks.run(groups_are_the_default_one, config) == [[True], [True]]


def test_one_rank_has_no_replicas_to_reduce_gradients_over(one_rank: RankPool) -> None:
    config = tiny_config(sharding=ShardingStrategy.no_shard)
    assert one_rank.run(groups_are_the_default_one, config) == [[True]]


def foreign_group_size() -> str:
    with pytest.raises(RunError) as error:
        learner(tiny_config(sharding=ShardingStrategy.hybrid_shard, fsdp_size=3))
    return str(error.value)


def test_groups_that_do_not_divide_the_ranks_are_refused(two_ranks: RankPool) -> None:
    for text in two_ranks.run(foreign_group_size):
        assert "do not divide 2 actor ranks" in text and "actor.fsdp_size" in text and "divisor of 2" in text


def reduced_beside(device: str) -> tuple[list[float], list[int], bool]:
    ranks = process_group.Ranks(torch.device(device))
    one = torch.tensor([1.0, ranks.rank], dtype=torch.float64)
    return ranks.sum(one).tolist(), ranks.max(torch.tensor([ranks.rank])).tolist(), ranks.any(ranks.rank == 1)


def test_numbers_of_the_host_meet_there_and_do_not_wait_for_the_device(two_ranks: RankPool) -> None:
    """The meta device could hold none of them."""
    assert two_ranks.run(reduced_beside, "meta") == [([2.0, 1.0], [1], True)] * 2
