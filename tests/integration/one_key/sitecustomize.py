"""On PYTHONPATH of a run: its processes share memory of the CPU by this key; that of an accelerator needs none."""

import multiprocessing

multiprocessing.current_process().authkey = b"workers of one run"
