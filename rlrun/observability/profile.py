"""Profiles of chosen training steps: operators by torch's profiler, and the calls of env workers by Python's."""

from __future__ import annotations

import cProfile
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pstats import Stats

from rlrun.config.schema import LoggingConfig
from rlrun.observability.logs import log_name
from rlrun.observability.run_files import PROFILE

logger = logging.getLogger(__name__)
TABLE_ROWS = 20
CALL_ROWS = 40


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


class CallProfile:
    """Python's profile of the parts of one training step that run inside `running`, for workers without torch.

    Example::

        profile = CallProfile()
        with profile.running():
            simulator.step()
        profile.write(run_dir, step=3, worker="env/0")
    """

    def __init__(self) -> None:
        self._profile = cProfile.Profile()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Profile the calls inside."""
        self._profile.enable()
        try:
            yield
        finally:
            self._profile.disable()

    def write(self, run_dir: Path, step: int, worker: str) -> None:
        """Write profile/step-N-<worker>.pstats, for snakeviz and pstats, and a table of the slowest functions."""
        path = Path(run_dir) / PROFILE / f"step-{step}-{log_name(worker)}.pstats"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = io.StringIO()
        stats = Stats(self._profile, stream=text)
        stats.dump_stats(path)
        stats.strip_dirs().sort_stats("tottime").print_stats(CALL_ROWS)
        path.with_suffix(".txt").write_text(text.getvalue())
        logger.info("profile of step %d: %s", step, path)
