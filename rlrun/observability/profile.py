"""Torch profiles of chosen training steps: one Chrome trace per step and worker."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlrun.config.schema import LoggingConfig
from rlrun.observability.logs import log_name
from rlrun.observability.run_files import PROFILE

logger = logging.getLogger(__name__)
TABLE_ROWS = 20


@contextmanager
def profiled(run_dir: Path, config: LoggingConfig, step: int, worker: str) -> Iterator[None]:
    """Profile the code inside if `step` is one of `logging.profile_steps`; else do nothing.

    Writes profile/step-N-<worker>.json (for Perfetto) and a table of the most expensive operators beside it, also if
    the code inside raises.
    """
    if step not in config.profile_steps:
        yield
        return
    from torch.profiler import ProfilerActivity, profile, supported_activities

    wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())
    path = Path(run_dir) / PROFILE / f"step-{step}-{log_name(worker)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    recording = profile(activities=sorted(wanted, key=str), record_shapes=True, profile_memory=True)
    recording.start()
    try:
        yield
    finally:
        recording.stop()
        recording.export_chrome_trace(str(path))
        order = "self_cuda_time_total" if ProfilerActivity.CUDA in wanted else "self_cpu_time_total"
        path.with_suffix(".txt").write_text(recording.key_averages().table(sort_by=order, row_limit=TABLE_ROWS))
        logger.info("profile of step %d: %s", step, path)
