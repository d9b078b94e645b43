"""Detection of stalled runs: finds the worker that causes a stall, collects evidence; imports neither ray nor torch."""
