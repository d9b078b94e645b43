"""Finds the policy folders of a configuration, and compares their checksums before workers read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlrun.config.provenance import Author
from rlrun.config.recorded import CONFIG, read_config
from rlrun.config.schema import RunConfig
from rlrun.data import checksums
from rlrun.system.errors import ExitStatus, RunError

SHOWN = 3  # damaged files named in a message


def require_whole_policy(
    folder: Path, key: str, is_content_read: bool, progress: Callable[[], None] = lambda: None
) -> None:
    """Raise RunError naming the damaged files of a policy that rlrun wrote; folders from elsewhere have no checksums.

    key: the configuration key that names the folder. is_content_read: False: compare only names and sizes.
    """
    if not (folder / checksums.CHECKSUMS).is_file():
        return
    damages = checksums.damages(folder, is_content_read, progress=progress)
    if damages:
        raise RunError(
            f"The policy in {folder} is damaged.",
            key=key,
            value=str(folder),
            cause="; ".join(damages[:SHOWN]),
            remedy=f"Copy the whole folder again from where it was whole. If its files were changed on purpose, delete "
            f"{checksums.CHECKSUMS} in it.",
            exit_status=ExitStatus.bad_input,
        )


def require_known_base(base: Path, checkpoint: Path, config: RunConfig) -> None:
    """Raise RunError if a checkpoint from elsewhere names a base policy that is neither its run's nor the user's.

    base: the policy under the adapters of the checkpoint.
    """
    run_dir = checkpoint.absolute().parent.parent
    written = run_dir / CONFIG
    if written.is_file() and read_config(written).author is Author.own:
        return
    named = [] if config.policy.path is None else [config.policy.path]
    known = [run_dir, *(Path(place) for place in (config.cache_dir, *named))]
    if not any(base.resolve().is_relative_to(place.resolve()) for place in known):
        raise RunError(
            f"The checkpoint {checkpoint} names a policy outside of its run.",
            key="policy.path",
            value=str(base),
            cause="Its adapters change that policy. No run of yours wrote the checkpoint, whose word is not obeyed.",
            remedy=f"If it is the right one, set policy.path={base}.",
            exit_status=ExitStatus.bad_input,
        )


def policy_folder(config: RunConfig) -> Path:
    """Return the policy folder for `evaluation.checkpoint`: itself, or the one inside a run or checkpoint folder.

    Raises RunError if there is none, or if it is damaged.
    """
    checkpoint = config.evaluation.checkpoint
    if checkpoint is None:
        raise RunError(
            "No policy was named.",
            key="evaluation.checkpoint",
            value=None,
            remedy="Add checkpoint=runs/<name>/<time>, or server=ws://host:port.",
        )
    folder = Path(checkpoint)
    for candidate in (folder, folder / "policy"):
        if (candidate / "config.json").is_file():
            require_whole_policy(candidate, "evaluation.checkpoint", config.checkpoint.verify)
            return candidate
    raise RunError(
        f"There is no policy at {folder}.",
        key="evaluation.checkpoint",
        value=checkpoint,
        cause="neither the folder nor a folder `policy` in it has a config.json",
        remedy="Name a run folder that ended, a checkpoint folder, or an exported policy folder.",
        exit_status=ExitStatus.bad_input,
    )
