"""An NCCL group with a deadline, outside the default process group.

torch accepts the deadline only in an attribute whose name begins with an underscore; vLLM sets it the same way.
"""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import ProcessGroupNCCL, TCPStore


def nccl_group(store: TCPStore, rank: int, size: int, deadline_s: float) -> ProcessGroupNCCL:
    """Join the group whose ranks meet at `store`. deadline_s: time limit of each collective."""
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=deadline_s)
    return ProcessGroupNCCL(store, rank, size, options)
