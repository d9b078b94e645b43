"""Records of a run that starts anew in the folder of a former one: moved aside, so that no curve mixes the two."""

from __future__ import annotations

import os
from pathlib import Path

from rlrun.config.recorded import CHECKPOINTS
from rlrun.config.schema import RunConfig
from rlrun.data import checkpoint_folder
from rlrun.data.recording import FOLDER
from rlrun.observability import run_files
from rlrun.observability.run_files import read_metrics

_OF_A_RUN = (
    *(run_files.CONFIG, run_files.CONFIG_DIFF, run_files.PLAN, run_files.PROVENANCE, run_files.METRICS),
    *(run_files.NOTES, run_files.EPISODES, run_files.LOSSES, run_files.EVALUATIONS, run_files.TIMELINE),
    *(run_files.REPORT, run_files.VIDEOS, run_files.PROFILE, run_files.ALARMS, CHECKPOINTS, FOLDER),
    *("policy", "first_policy", "evaluation.json", "tensorboard", "wandb", "wandb_id.txt"),
)


def set_aside(run_dir: Path, config: RunConfig) -> str | None:
    """Move what a former run left into former_<N> of the run folder, if this run starts anew. Returns a sentence.

    Returns None if the run resumes, or if there is nothing that it could mix with. Raises OSError.
    """
    wanted, checkpoints = config.checkpoint.resume, checkpoint_folder.named(run_dir / CHECKPOINTS)
    if wanted not in (None, "auto") or (wanted == "auto" and checkpoints):
        return None
    steps = [int(record["step"]) for record in read_metrics(run_dir)]
    if not steps and not checkpoints:
        return None
    place = run_dir / f"{run_files.FORMER}{1 + run_files.num_former(run_dir)}"
    place.mkdir()
    for name in (*_OF_A_RUN, *(path.name for path in run_dir.glob("config_to_step_*.yaml"))):
        if (run_dir / name).exists() and not _is_used(run_dir / name, config):
            os.replace(run_dir / name, place / name)
    held = f"{run_files.METRICS} holds {len(steps)} step{'' if len(steps) == 1 else 's'}"
    why = "there is no checkpoint" if wanted == "auto" else "checkpoint.resume=null"
    found = f"{held}, but {why}" if steps else f"there are {len(checkpoints)} checkpoints, but {why}"
    return f"{found}: the run starts at step 1; what the former run left is now in {place}"


def _is_used(place: Path, config: RunConfig) -> bool:
    """Return whether the new run begins with something in there."""
    named = [Path(path).absolute() for path in (config.policy.path, config.demos.path) if path is not None]
    return any(path.is_relative_to(place.absolute()) for path in named)


def steps_to_repeat(run_dir: Path, step: int) -> str:
    """Return what follows "resumed at step 50" if later steps are recorded, which the run repeats; else ""."""
    last = max((int(record["step"]) for record in read_metrics(run_dir)), default=0)
    return (
        f"; {run_files.METRICS} holds steps up to {last}, of which those after {step} are repeated"
        if last > step
        else ""
    )
