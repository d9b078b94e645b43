"""The statistics of openpi's folders, in assets/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.policies.lerobot.statistics import MODES, Normalizer, Statistics
from rlrun.policies.pi.config import MODES as MODE_OF
from rlrun.policies.pi.config import PiConfig
from rlrun.policies.weight_files import read_json, refuse

STATISTICS_FILE = "norm_stats.json"
EPS = 1e-6  # openpi adds it to deviations and ranges, in both directions


def read_openpi_statistics(folder: Path, config: PiConfig, given: str | None) -> Statistics:
    """Read the statistics of the first dimensions. given: the file; None: the only one in assets/.

    Raises RunError if there is none, or more than one to choose from.
    """
    files = [Path(given)] if given else sorted((folder / "assets").rglob(STATISTICS_FILE))
    if len(files) != 1 or not files[0].is_file():
        refuse(
            f"{folder} has {len(files)} files {STATISTICS_FILE} in assets/, where one is needed.",
            "Name it with policy.pi.norm_stats_path=FILE.",
        )
    stored = read_json(files[0])
    found = stored.get("norm_stats", stored)
    return Statistics(
        _normalizer(files[0], found, "state", config.num_proprio, MODE_OF[config.type]),
        _normalizer(files[0], found, "actions", config.num_actions, MODE_OF[config.type]),
    )


def _normalizer(file: Path, found: Mapping[str, Any], name: str, size: int, mode: str) -> Normalizer:
    kind = MODES[mode]
    values = [found.get(name, {}).get(part) for part in kind.parts]
    if any(value is None or len(value) < size for value in values):
        refuse(
            f"{file} lacks {' and '.join(kind.parts)} of {size} dimensions of {name}.",
            "Compute it with openpi's scripts/compute_norm_stats.py on data of the run's state and actions.",
        )
    low, high = (np.asarray(value[:size], np.float32) for value in values if value is not None)
    for part, numbers in zip(kind.parts, (low, high), strict=True):
        if len(wrong := np.flatnonzero(~np.isfinite(numbers))):
            refuse(
                f"{file}: {part}[{wrong[0]}] of {name} is {numbers[wrong[0]]}, and {len(wrong) - 1} more are so.",
                "Compute it again without the episodes that hold NaN.",
            )
    return kind(low, high + np.float32(EPS))
