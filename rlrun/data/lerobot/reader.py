"""A dataset of demonstrations: its frames, batches of action chunks, and statistics for normalization."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.data.lerobot import layout, statistics
from rlrun.data.lerobot.choice import chosen
from rlrun.data.lerobot.features import DemoFeatures
from rlrun.data.lerobot.frames import Frames, time_remark
from rlrun.data.lerobot.layout import DatasetError
from rlrun.data.lerobot.normalization import rare_motions, widened
from rlrun.data.lerobot.pictures import OpenTables, PictureMemory, StoredPictures, VideoPictures
from rlrun.data.lerobot.tables import DatasetFiles

if TYPE_CHECKING:
    from rlrun.config.schema import DemosConfig


@dataclass(frozen=True, eq=False)
class DemoBatch:
    """dataset -> imitation: M frames, each with the action chunk that follows it.

    Example: M=64, one 64 px camera, C=4, A=8: images (64, 1, 64, 64, 3), actions (64, 4, 8).
    """

    images: np.ndarray  # uint8 [M, N, H, W, 3]
    proprio: np.ndarray  # float32 [M, P]
    instructions: tuple[str, ...]  # M
    actions: np.ndarray  # float32 [M, C, A]; after the end of an episode its last action repeats
    step_valid: np.ndarray  # bool [M, C]; False: a repeated action


class DemoDataset:
    """The chosen episodes of a LeRobot dataset: F frames, E episodes, N cameras, P state numbers, A actions.

    Numbers are in memory (from 256 MB on in a temporary file), pictures are read from disk when they are wanted.

    Example::

        demos = DemoDataset.load("~/my_demos")
        batch = demos.batch(np.array([0, 17]), num_action_chunks=4)
    """

    def __init__(
        self,
        features: DemoFeatures,
        frames: Frames,
        pictures: PictureMemory,
        sentences: tuple[tuple[str, ...], np.ndarray],
        stats: dict[str, dict],
        left_out: tuple[str, ...],
    ):
        """sentences: the distinct ones, and the index of each frame's, int [F]."""
        self.features = features
        self.proprio = frames.state  # float32 [F, P]
        self.actions = frames.action  # float32 [F, A]
        self.episode_ends = np.repeat(np.cumsum(frames.lengths), frames.lengths)  # int64 [F]: end of its episode
        self.sentences, self._sentence = sentences  # sorted
        self.seeds = np.array([row.seed for row in frames.episodes], np.int64)  # [E]; -1: unknown
        self.success = np.array([row.success is not False for row in frames.episodes], bool)  # [E]; True: unknown, too
        self.stats = stats  # in the form of meta/stats.json, by "observation.state", "action" and the cameras' features
        self.left_out = left_out  # sentences on what is left out, or does not agree, for a person
        self._pictures = pictures
        self._indices = np.repeat([row.index for row in frames.episodes], frames.lengths)

    def __len__(self) -> int:
        return len(self.actions)

    @classmethod
    def load(cls, folder: Path | str) -> DemoDataset:
        """Open all of a dataset under the usual names, without a configuration. Raises DatasetError."""
        from rlrun.config.schema import DemosConfig

        return cls.open(folder, DemosConfig())

    @classmethod
    def open(
        cls,
        folder: Path | str,
        demos: DemosConfig,
        cameras: Sequence[str] | None = None,
        size: tuple[int, int] | None = None,
    ) -> DemoDataset:
        """Open a dataset, and check all of it but the pictures. Raises DatasetError: file, cause and remedy.

        demos: keys, episodes, only_successful and memory_gb are read. cameras: names of the cameras to take, in this
        order; None: all, in the dataset's order. size: height and width to which pictures are scaled; None: they are
        scaled only if cameras differ, to the largest.
        """
        files = DatasetFiles(Path(folder).expanduser(), demos, cameras)
        frames, remarks = chosen(files, demos)
        tables, roles = OpenTables(files), files.roles
        sources = [
            VideoPictures(frames, camera.key, files.fps)
            if camera.is_video
            else StoredPictures(files, frames, camera.key, tables)
            for camera in roles.cameras
        ]
        sizes = tuple(source.size() for source in sources)
        state = roles.state
        features = DemoFeatures(
            cameras=tuple(camera.name for camera in roles.cameras),
            camera_sizes=sizes,
            num_proprio=state.size if state else 0,
            num_actions=roles.action.size,
            fps=files.fps,
            proprio_names=state.names if state else (),
            action_names=roles.action.names,
        )
        taken = size or max(sizes, key=lambda one: one[0] * one[1], default=(0, 0))
        stats = statistics.of_dataset(files, frames)
        sentences = _sentences(files, frames)
        told = [*roles.left_out, *remarks, *time_remark(frames, files.fps), *_empty(*sentences)]
        told += rare_motions(stats[layout.ACTION], "action", roles.action.names)
        told += rare_motions(stats[layout.STATE], "state", state.names) if state else []
        try:
            pictures = PictureMemory(sources, frames.lengths, taken, demos.memory_gb * 1e9)
        except MemoryError as error:
            cause = f"demos.memory_gb={demos.memory_gb:g} is more memory than there is"
            raise DatasetError(files.folder, cause, "lower demos.memory_gb") from error
        return cls(features, frames, pictures, sentences, stats, tuple(told))

    def batch(self, indices: np.ndarray, num_action_chunks: int) -> DemoBatch:
        """Return frames `indices` (int [M]), each with its next C = num_action_chunks actions.

        Raises DatasetError for a picture that cannot be read.
        """
        steps = indices[:, None] + np.arange(num_action_chunks)
        step_valid = steps < self.episode_ends[indices][:, None]
        steps = np.minimum(steps, self.episode_ends[indices][:, None] - 1)
        instructions = tuple(self.sentences[i] for i in self._sentence[indices])
        images = self._pictures.take(indices)
        return DemoBatch(images, np.asarray(self.proprio[indices]), instructions, self.actions[steps], step_valid)

    def episode_of(self, frame: int) -> int:
        """Return the dataset's own episode_index of a frame."""
        return int(self._indices[frame])

    def norm_stats(self, action_mask: Sequence[bool] | None = None) -> dict[str, Any]:
        """Return normalization statistics in OpenVLA's format: {"action": {"q01", "q99", "mask", …}, "proprio": …}.

        action_mask: A values, False: that dimension is used as it is; None: all are normalised.
        """
        num_actions = self.features.num_actions
        mask = list(action_mask) if action_mask is not None else [True] * num_actions
        if len(mask) != num_actions:
            raise ValueError(f"action_mask has {len(mask)} values, actions {num_actions} dimensions")
        entries = {"action": layout.ACTION, "proprio": layout.STATE}
        stats: dict[str, Any] = {
            name: {s: list(self.stats[key][s]) for s in statistics.OF_VECTORS} for name, key in entries.items()
        }
        stats = {name: widened(found, is_action=name == "action").statistics for name, found in stats.items()}
        stats["action"]["mask"] = mask
        return stats | {"num_transitions": len(self), "num_trajectories": len(self.seeds)}


def _sentences(files: DatasetFiles, frames: Frames) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the distinct sentences, sorted, and the index of each frame's: by task_index, else its episode's first."""
    number: dict[str, int] = {}
    sentence = np.zeros(len(frames.task), np.int64)
    ends = np.cumsum(frames.lengths)
    for episode, begin, end in zip(frames.episodes, ends - frames.lengths, ends, strict=True):
        tasks = frames.task[begin:end]
        for task in np.unique(tasks):
            text = files.tasks.get(int(task), episode.tasks[0] if episode.tasks else None)
            if text is None and files.tasks:
                cause = f"task_index {task} of episode {episode.index} stands in no table of tasks"
                raise DatasetError(frames.files[frames.file[begin]], cause, layout.COPY_AGAIN)
            sentence[begin:end][tasks == task] = number.setdefault(text or "", len(number))
    order = sorted(number)
    renumbered = np.array([order.index(text) for text in number], np.int64)
    return tuple(order), renumbered[sentence]


def _empty(sentences: tuple[str, ...], sentence: np.ndarray) -> Iterator[str]:
    """Yield a sentence if frames have an empty one."""
    count = int(np.isin(sentence, [i for i, text in enumerate(sentences) if not text.strip()]).sum())
    if count:
        yield f"{count} of {len(sentence)} frames have no sentence: they are trained with an empty one."
