"""Real ranks for tests: processes that stay up, share a gloo group, and run functions together."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from tests import processes

ANSWER_WITHIN_S = 240.0


class RankPool:
    """`run(function, *arguments)` calls `function(*arguments)` on every rank and returns the results in rank order.

    Functions must be importable by name; they may use the process group.
    """

    def __init__(self, world_size: int):
        context = processes.context()
        port = free_port()
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world_size, port, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable, *arguments: object) -> list:
        for pipe in self._pipes:
            pipe.send((function, arguments))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(ANSWER_WITHIN_S), f"rank {rank} did not answer {function.__name__} in time"
            answers.append(pipe.recv())
        failures = [text for is_ok, text in answers if not is_ok]
        assert not failures, "\n".join(failures)
        return [result for _, result in answers]

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join(timeout=20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _serve(rank: int, world_size: int, port: int, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch

    from rlrun.actor import process_group

    torch.set_num_threads(1)
    process_group.join(rank, world_size, "127.0.0.1", port, "gloo", 60.0)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:  # the tests are over
            break
        try:
            pipe.send((True, function(*arguments)))
        except BaseException:
            pipe.send((False, f"rank {rank}:\n{traceback.format_exc()}"))
    process_group.leave()
