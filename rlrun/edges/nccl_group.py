"""NCCL group with a deadline, outside the default process group. A separate module: CPU builds of torch have no NCCL.

torch accepts the deadline only in an attribute whose name begins with an underscore; vLLM sets it the same way.

A group of NCCL normally has a thread that ends the process after a deadline or the loss of a peer. This group must not:
the loss of a rollout worker would end actor rank 0. With TORCH_NCCL_BLOCKING_WAIT, which torch reads when it makes a
group, there is no such thread, and waiting raises an error instead. Groups made before or after are not affected.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import ProcessGroupNCCL, TCPStore

BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"


def nccl_group(store: TCPStore, rank: int, size: int, deadline_s: float) -> ProcessGroupNCCL:
    """Join the group whose ranks meet at `store`. deadline_s: time limit of each collective."""
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=deadline_s)
    with _blocking_wait():
        return ProcessGroupNCCL(store, rank, size, options)


@contextmanager
def _blocking_wait() -> Iterator[None]:
    before = os.environ.get(BLOCKING_WAIT)
    os.environ[BLOCKING_WAIT] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[BLOCKING_WAIT]
        else:
            os.environ[BLOCKING_WAIT] = before
