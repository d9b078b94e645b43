"""Opens the dataset of a run, and says what it holds, for comparison with the world that it is for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlrun.data.fit import Demonstrated
from rlrun.data.lerobot.layout import DatasetError
from rlrun.data.lerobot.reader import DemoDataset
from rlrun.system.errors import ExitStatus, RunError

if TYPE_CHECKING:
    from rlrun.config.schema import DemosConfig


def open_dataset(demos: DemosConfig, folder: str, cameras: tuple[str, ...] | None = None) -> DemoDataset:
    """Open a dataset as `demos` chooses from it. Raises RunError naming an unusable file.

    cameras: names of the cameras to take, in this order; None: all.
    """
    with dataset_errors(folder):
        return DemoDataset.open(folder, demos, cameras)


def demonstrated(demos: DemosConfig, folder: str) -> Demonstrated:
    """Return what a dataset holds. Raises RunError naming an unusable file."""
    found = open_dataset(demos, folder)
    known = found.features
    return Demonstrated(
        cameras=known.cameras,
        camera_sizes=known.camera_sizes,
        num_proprio=known.num_proprio,
        num_actions=known.num_actions,
        fps=known.fps,
        proprio_names=known.proprio_names,
        action_names=known.action_names,
        actions=found.actions,
        sentences=found.sentences,
        left_out=found.left_out,
        is_ordered=demos.keys.images is not None,
    )


@contextmanager
def dataset_errors(folder: str) -> Iterator[None]:
    """Raise the DatasetErrors of the code inside as RunErrors."""
    try:
        yield
    except DatasetError as error:
        raise RunError(
            f"The dataset cannot be used: {error.path}.",
            key="demos.path",
            value=folder,
            cause=error.cause,
            remedy=error.remedy,
            exit_status=ExitStatus.bad_input,
        ) from error
