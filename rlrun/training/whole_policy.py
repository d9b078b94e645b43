"""A policy folder that rlrun wrote is compared with its checksums once, by whoever names it, before workers read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlrun.data import checksums
from rlrun.system.errors import RunError
from rlrun.system.exit_status import ExitStatus

SHOWN = 3  # damaged files in a sentence


def require_whole_policy(
    folder: Path, key: str, is_content_read: bool, progress: Callable[[], None] = lambda: None
) -> None:
    """Raise RunError naming the damaged files of a policy that rlrun wrote; official folders have no checksums.

    key: which names the folder. is_content_read: False: only names and sizes are compared.
    """
    damages = policy_damages(folder, is_content_read, progress)
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


def policy_damages(folder: Path, is_content_read: bool, progress: Callable[[], None] = lambda: None) -> list[str]:
    """What is wrong with a policy folder, by file name; [] where it is whole, or nobody wrote checksums."""
    if not (folder / checksums.CHECKSUMS).is_file():
        return []
    return checksums.damages(folder, is_content_read, progress=progress)
