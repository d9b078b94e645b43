"""A group of NCCL with a deadline, for ranks that belong to no default group.

torch's constructor takes the deadline in an attribute whose name has an underscore, and nowhere else; as vLLM does.
"""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import ProcessGroupNCCL, TCPStore


def nccl_group(store: TCPStore, rank: int, size: int, deadline_s: float) -> ProcessGroupNCCL:
    """Join the group whose ranks meet at `store`. deadline_s: of each collective."""
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=deadline_s)
    return ProcessGroupNCCL(store, rank, size, options)
