"""Dataset of demonstrations: batches of frames with action chunks, normalization statistics, and chosen episodes.

Episodes are chosen by demos.episodes and demos.only_successful.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.data.lerobot import layout, statistics
from rlrun.data.lerobot.changes import change_numbers, changed_sources, changed_stats
from rlrun.data.lerobot.ends import terminal_frames
from rlrun.data.lerobot.frames import FrameTable, read_frames
from rlrun.data.lerobot.layout import FRAME_SUCCESS, DatasetError, DemoFeatures
from rlrun.data.lerobot.pictures import OpenTables, PictureMemory, PictureSource, StoredPictures, VideoPictures
from rlrun.data.lerobot.statistics import rare_motions, widen
from rlrun.data.lerobot.tables import DatasetFiles, EpisodeRow
from rlrun.data.thumbnails import FLAT_LEVELS, NOISE_LEVELS, differences, spread, thumbnail
from rlrun.system.errors import ExitStatus, RunError

if TYPE_CHECKING:
    from rlrun.config.schema import DemosConfig

_SHOWN_EPISODES = 16  # whose pictures are compared with the world's
_SHOWN_FRAMES = 4  # of each of them


@dataclass(frozen=True, eq=False)
class ShownPictures:
    """Pictures of one camera in E' of the episodes, a few frames of each, shrunk for comparisons.

    Example: 16 episodes: first (16, 32, 32, 3), is_flat (16,), has_moved (16,), episodes (16,)
    """

    first: np.ndarray  # uint8 [E', THUMBNAIL, THUMBNAIL, 3], of each episode's first frame
    is_flat: np.ndarray  # bool [E']: each frame has one colour
    has_moved: np.ndarray  # bool [E']: frames differ by more than the noise of a video, or there is only one
    episodes: np.ndarray  # int [E'], episode_index


@dataclass(frozen=True, eq=False)
class DatasetInfo(DemoFeatures):
    """Features, actions and texts of a data set. Example: DatasetInfo(("top",), ((48, 64),), 5, 2, fps=10.0)"""

    actions: np.ndarray | None = None  # float32 [F, A], simulator units; None: unknown
    sentences: tuple[str, ...] = ()  # distinct ones; (): unknown
    left_out: tuple[str, ...] = ()  # sentences on features that are not read
    is_ordered: bool = False  # the user has listed its cameras in the order of the world's (demos.keys)
    state: np.ndarray | None = None  # float32 [F, P]; None: unknown
    rewards: np.ndarray | None = None  # float32 [F]; None: it has none, or they are unknown
    lengths: np.ndarray | None = None  # int [E], frames of each episode; None: unknown
    shown: tuple[ShownPictures, ...] = ()  # of each camera; (): unknown


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
    """Chosen episodes of a LeRobot dataset: F frames, E episodes, N cameras, P state numbers, A actions.

    Numbers are in memory (from 256 MB on in a temporary file), pictures are read from disk when they are needed.

    Example::

        demos = DemoDataset.load("~/my_demos")
        batch = demos.batch(np.array([0, 17]), num_action_chunks=4)
    """

    def __init__(
        self,
        features: DemoFeatures,
        frames: FrameTable,
        pictures: PictureMemory,
        sentences: tuple[tuple[str, ...], np.ndarray],
        stats: dict[str, dict],
        left_out: tuple[str, ...],
    ):
        """sentences: the distinct ones, and the index of each frame's sentence, int [F]."""
        self.features = features
        self.proprio = frames.state  # float32 [F, P]
        self.actions = frames.action  # float32 [F, A]
        # float32 [F], NaN: unknown; bool [F]
        self.rewards = frames.reward
        self.done = frames.done
        self.lengths = frames.lengths  # int64 [E]
        self.episode_ends = np.repeat(np.cumsum(frames.lengths), frames.lengths)  # int64 [F]: end of its episode
        self.sentences, self._sentence = sentences  # sorted
        self.seeds = np.array([row.seed for row in frames.episodes], np.int64)  # [E]; -1: unknown
        self.success = np.array([row.success is not False for row in frames.episodes], bool)  # [E]; True: unknown, too
        self.stats = stats  # in the form of meta/stats.json, by "observation.state", "action" and the cameras' features
        self.left_out = left_out  # sentences for the user on unused parts and inconsistencies
        self._pictures = pictures
        self._indices = np.repeat([row.index for row in frames.episodes], frames.lengths)

    def __len__(self) -> int:
        return len(self.actions)

    @classmethod
    def load(cls, folder: Path | str) -> DemoDataset:
        """Open all episodes of a dataset with default settings. Raises DatasetError."""
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
        """Open a dataset, and check everything but its pictures. Raises DatasetError: file, cause and remedy.

        demos: keys, episodes, only_successful and memory_gb are read. cameras: names of the cameras to take, in this
        order; None: all, in the dataset's order. size: height and width to which pictures are scaled; None: they are
        scaled only if cameras differ, to the largest.
        """
        files = DatasetFiles(Path(folder).expanduser(), demos, cameras)
        frames, remarks = read_chosen_episodes(files, demos)
        roles = files.roles
        has_rewards = {layout.FRAME_REWARD, layout.FRAME_DONE} <= files.info["features"].keys()
        if has_rewards:
            done, doubts = terminal_frames(frames, demos.time_limit)
            frames = replace(frames, done=done)
            remarks += doubts
        remarks += change_numbers(frames, roles, demos.keys, files.path(layout.INFO))
        sources, changes = _picture_sources(files, frames, demos, is_chosen=cameras is not None)
        remarks += changes
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
            has_rewards=has_rewards,
        )
        taken = size or max(sizes, key=lambda one: one[0] * one[1], default=(0, 0))
        stats = statistics.dataset_stats(files, frames)
        for camera in roles.cameras:
            if camera.key in stats:
                stats[camera.key] = changed_stats(stats[camera.key], demos.keys.pictures.get(camera.name, []))
        sentences = _sentences(files, frames)
        warnings = [*roles.left_out, *remarks, *frames.remarks, *_empty_sentence_warning(*sentences)]
        warnings += rare_motions(stats[layout.ACTION], "action", roles.action.names)
        warnings += rare_motions(stats[layout.STATE], "state", state.names) if state else []
        try:
            pictures = PictureMemory(sources, frames.lengths, taken, demos.memory_gb * 1e9)
        except MemoryError as error:
            cause = f"demos.memory_gb={demos.memory_gb:g} is more memory than there is"
            raise DatasetError(files.folder, cause, "lower demos.memory_gb") from error
        return cls(features, frames, pictures, sentences, stats, tuple(warnings))

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

    def check_pictures(self) -> list[str]:
        """Check headers and durations of all pictures, without decoding them. Returns sentences on other sizes.

        Raises DatasetError for a missing or broken picture, and for a video that ends before its frames.
        """
        return self._pictures.check()

    def episode_of(self, frame: int) -> int:
        """Return the dataset's episode_index of a frame."""
        return int(self._indices[frame])

    def norm_stats(self, action_mask: Sequence[bool] | None = None) -> dict[str, Any]:
        """Return normalization statistics in OpenVLA's format: {"action": {"q01", "q99", "mask", …}, "proprio": …}.

        action_mask: A values, False: that dimension is not normalised; None: all are.
        """
        num_actions = self.features.num_actions
        mask = list(action_mask) if action_mask is not None else [True] * num_actions
        if len(mask) != num_actions:
            raise ValueError(f"action_mask has {len(mask)} values, actions {num_actions} dimensions")
        entries = {"action": layout.ACTION, "proprio": layout.STATE}
        stats: dict[str, Any] = {
            name: {s: list(self.stats[key][s]) for s in statistics.VECTOR_STATS} for name, key in entries.items()
        }
        stats = {name: widen(kept, is_action=name == "action").statistics for name, kept in stats.items()}
        stats["action"]["mask"] = mask
        return stats | {"num_transitions": len(self), "num_trajectories": len(self.seeds)}


def _picture_sources(
    files: DatasetFiles, frames: FrameTable, demos: DemosConfig, is_chosen: bool
) -> tuple[list[PictureSource], list[str]]:
    """Return the pictures of each camera with their declared changes, and a sentence on each change.

    is_chosen: only some cameras are taken, so that changes of others may be declared.
    """
    tables = OpenTables(files)
    sources = [
        VideoPictures(frames, camera.key, files.fps, layout.num_pixels(files.info["features"][camera.key]))
        if camera.is_video
        else StoredPictures(files, frames, camera.key, tables)
        for camera in files.roles.cameras
    ]
    names = [camera.name for camera in files.roles.cameras]
    declared = {n: steps for n, steps in demos.keys.pictures.items() if n in names or not is_chosen}
    return changed_sources(sources, names, declared, files.path(layout.INFO))


def _sentences(files: DatasetFiles, frames: FrameTable) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the distinct sentences, sorted, and each frame's index: by task_index, else the first of its episode."""
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
    place = {text: at for at, text in enumerate(order)}
    renumbered = np.array([place[text] for text in number], np.int64)
    return tuple(order), renumbered[sentence]


def _empty_sentence_warning(sentences: tuple[str, ...], sentence: np.ndarray) -> Iterator[str]:
    """Yield a sentence if frames have an empty one."""
    count = int(np.isin(sentence, [i for i, text in enumerate(sentences) if not text.strip()]).sum())
    if count:
        yield f"{count} of {len(sentence)} frames have no sentence: they are trained with an empty one."


def read_chosen_episodes(files: DatasetFiles, demos: DemosConfig) -> tuple[FrameTable, list[str]]:
    """Read the frames of the chosen episodes. Returns them and sentences on the others. Raises DatasetError."""
    rows = select_episodes(files, demos.episodes)
    remarks = [] if len(rows) == len(files.episodes) else [_omitted(len(files.episodes) - len(rows), "demos.episodes")]
    is_in_table = all(row.success is not None for row in rows)
    if is_in_table and demos.only_successful:
        rows = _successful(files, rows, remarks)
    frames = read_frames(files, rows)
    if not is_in_table:
        frames = _success_from_frames(files, frames, is_needed=demos.only_successful)
        if demos.only_successful and not all(row.success for row in frames.episodes):
            frames = read_frames(files, _successful(files, frames.episodes, remarks))
    num_failed = sum(row.success is False for row in frames.episodes)
    if num_failed:
        remarks.append(
            f"{num_failed} of {len(frames.episodes)} episodes did not succeed, and are imitated like the others; "
            "demos.only_successful=true leaves them out."
        )
    return frames, remarks


def _successful(files: DatasetFiles, rows: Sequence[EpisodeRow], remarks: list[str]) -> list[EpisodeRow]:
    """Return the episodes that succeeded, and append a sentence on the others. Raises DatasetError without any."""
    successful = [row for row in rows if row.success]
    if len(successful) < len(rows):
        remarks.append(_omitted(len(rows) - len(successful), "demos.only_successful=true"))
    _require_some(files, successful)
    return successful


def select_episodes(files: DatasetFiles, episodes: Sequence[int] | str | None) -> list[EpisodeRow]:
    """Return the episodes of demos.episodes. episodes: indices, or a range such as "10:50"; None: all."""
    rows = files.episodes
    if episodes is None:
        return rows
    if isinstance(episodes, str):
        begin, _, end = episodes.partition(":")
        taken = [row for row in rows if int(begin or 0) <= row.index < int(end or layout.MAX_ROWS)]
    else:
        known = {row.index: row for row in rows}
        absent = [index for index in episodes if index not in known]
        if absent:
            cause = f"demos.episodes names {absent[0]}, and there is no such episode_index"
            raise DatasetError(files.folder, cause, _choose_remedy(rows))
        taken = [known[index] for index in sorted(set(episodes))]
    if not taken:
        raise DatasetError(files.folder, f"demos.episodes={episodes} names no episode of it", _choose_remedy(rows))
    return taken


def _choose_remedy(rows: list[EpisodeRow]) -> str:
    return f"name some of its {len(rows)} episodes, whose episode_index is from {rows[0].index} to {rows[-1].index}"


def _omitted(count: int, key: str) -> str:
    return f"{count} episode{'s are' if count > 1 else ' is'} left out by {key}."


def _success_from_frames(files: DatasetFiles, frames: FrameTable, is_needed: bool) -> FrameTable:
    """Set the success of each episode by next.success: true if it is true in any frame."""
    if FRAME_SUCCESS not in files.info["features"]:
        if is_needed:
            cause = (
                "demos.only_successful is true, and neither meta/episodes has a column success nor data/ next.success"
            )
            raise DatasetError(files.folder, cause, "set demos.only_successful=false, and choose by demos.episodes")
        return frames
    begins = np.cumsum(frames.lengths) - frames.lengths
    success = np.logical_or.reduceat(frames.success, begins)
    rows = [replace(row, success=bool(succeeded)) for row, succeeded in zip(frames.episodes, success, strict=True)]
    return replace(frames, episodes=tuple(rows))


def _require_some(files: DatasetFiles, rows: list[EpisodeRow]) -> None:
    if not rows:
        cause = "demos.only_successful is true, and none of the chosen episodes succeeded"
        raise DatasetError(files.folder, cause, "set demos.only_successful=false, or choose others by demos.episodes")


def open_dataset(demos: DemosConfig, folder: str, cameras: tuple[str, ...] | None = None) -> DemoDataset:
    """Open the episodes of a dataset that `demos` chooses. Raises RunError naming an unusable file.

    cameras: names of the cameras to take, in this order; None: all.
    """
    with dataset_errors(folder):
        return DemoDataset.open(folder, demos, cameras)


def dataset_info(demos: DemosConfig, folder: str) -> DatasetInfo:
    """Return the description of a dataset for the comparison with a world. Raises RunError naming an unusable file."""
    with dataset_errors(folder):
        found = DemoDataset.open(folder, replace(demos, memory_gb=0.0))  # single frames are read, no whole episodes
        sizes = found.check_pictures()
        shown = _shown_pictures(found)
    return DatasetInfo(
        **vars(found.features) | ({} if demos.fps is None else {"fps": demos.fps}),
        actions=found.actions,
        sentences=found.sentences,
        left_out=(*found.left_out, *sizes),
        is_ordered=demos.keys.images is not None,
        state=found.proprio,
        rewards=found.rewards if found.features.has_rewards else None,
        lengths=found.lengths,
        shown=shown,
    )


def _shown_pictures(found: DemoDataset) -> tuple[ShownPictures, ...]:
    """Read a few frames of a few episodes, evenly distributed."""
    ends = np.cumsum(found.lengths)
    chosen = np.unique(np.linspace(0, len(ends) - 1, _SHOWN_EPISODES).astype(int))
    num_cameras = len(found.features.cameras)
    first: list[np.ndarray] = []
    is_flat: list[np.ndarray] = []
    has_moved: list[np.ndarray] = []
    for episode in chosen if num_cameras else ():
        begin = ends[episode] - found.lengths[episode]
        frames = np.unique(np.linspace(begin, ends[episode] - 1, _SHOWN_FRAMES).astype(int))
        images = found.batch(frames, 1).images
        first.append(np.stack([thumbnail(picture) for picture in images[0]]))
        is_flat.append(spread(images).max(0) <= FLAT_LEVELS)
        moved = differences(images[:1], images).max(0) > NOISE_LEVELS
        has_moved.append(moved | (len(frames) == 1))
    episodes = np.array([found.episode_of(int(ends[episode] - 1)) for episode in chosen])
    return tuple(
        ShownPictures(
            first=np.stack([part[at] for part in first]),
            is_flat=np.stack([part[at] for part in is_flat]),
            has_moved=np.stack([part[at] for part in has_moved]),
            episodes=episodes,
        )
        for at in range(num_cameras)
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
