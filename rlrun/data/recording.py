"""Recording of a run on disk, one file per message, written atomically; and differences between messages.

recording.json                               configuration and versions of the recorded run
start/step_00000002/                         checkpoint of the actor before the first recorded step
step-000002/env-0/observation-00004.safetensors, actions-00004.safetensors, trajectory-1.safetensors (for actor
            rank 1), and end.json, written last
step-000002/actor-0/update.json, weights-00000.safetensors (bucket 0 of what was published after the step)
"""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rlrun.data import checkpoint_folder
from rlrun.system.local_files import parse_json, read_json

RECORDING_FOLDER = "recording"  # in the run folder
MANIFEST = "recording.json"
START = "start"
FORMAT = 2  # 1 had no policy version in observations

_END = "end.json"
_SUFFIX = ".safetensors"

Message = TypeVar("Message")


class RecordingError(Exception):
    """A file of a recording cannot be used. path: the file. cause: it is missing, corrupted or of another kind."""

    def __init__(self, path: Path, cause: str):
        super().__init__(path, cause)
        self.path = path
        self.cause = cause


@dataclass(frozen=True)
class Recording:
    """Paths of a recording under `folder`.

    Example::

        recording = Recording(run_dir / FOLDER)
        recording.steps()                                              # [2, 3]
        recording.message(2, "env/0", "actions", 4)                    # …/step-000002/env-0/actions-00004.safetensors
    """

    folder: Path

    def worker_folder(self, step: int, worker: str) -> Path:
        """Return the folder of the messages that a worker ("role/rank") sent and received in a training step."""
        return self.folder / f"step-{step:06}" / worker.replace("/", "-")

    def message(self, step: int, worker: str, edge: str, number: int) -> Path:
        """Return the file of one message."""
        width = 1 if edge == "trajectory" else 5
        return self.worker_folder(step, worker) / f"{edge}-{number:0{width}}{_SUFFIX}"

    def update(self, step: int) -> Path:
        """Return the file of the update's metrics, as actor rank 0 sent them to the driver."""
        return self.worker_folder(step, "actor/0") / "update.json"

    def end(self, step: int, worker: str) -> Path:
        """Return the file that marks an env worker's part of a step as complete."""
        return self.worker_folder(step, worker) / _END

    def count(self, step: int, worker: str, edge: str) -> int:
        """Return the messages of an edge, numbered from 0. Raises RecordingError if one between them is missing."""
        messages = sorted(self.worker_folder(step, worker).glob(f"{edge}-*{_SUFFIX}"))
        for number in range(len(messages)):
            if not self.message(step, worker, edge, number).exists():
                raise RecordingError(self.message(step, worker, edge, number), "it is missing, but later ones exist")
        return len(messages)

    def steps(self) -> list[int]:
        """Return the training steps with recorded messages."""
        names = [path.name.partition("-")[2] for path in self.folder.glob("step-*")]
        return sorted(int(name) for name in names if name.isdigit())

    def start(self) -> tuple[int, Path] | None:
        """Return the first step recorded for the actor and the checkpoint before it, or None if it was not recorded."""
        checkpoints = checkpoint_folder.list_complete(self.folder / START)
        return (int(checkpoints[0].name.rpartition("_")[2]), checkpoints[0]) if checkpoints else None

    def manifest(self) -> dict[str, Any]:
        """Return the content of `recording.json`. Raises RecordingError."""
        path = self.folder / MANIFEST
        try:
            content = read_json(path)
        except OSError as error:
            raise RecordingError(path, "the folder has no recording") from error
        except ValueError as error:
            raise RecordingError(path, "it is damaged") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise RecordingError(path, f"it is not of format {FORMAT}, which this version reads")
        if not all(isinstance(content.get(name), dict) for name in ("config", "packages")):
            raise RecordingError(path, "it lacks the configuration or the versions of the recorded run")
        return content


def find_recording(path: Path) -> Recording:
    """Return the recording of a run folder, or the recording at `path` itself."""
    return Recording(path / RECORDING_FOLDER if (path / RECORDING_FOLDER).is_dir() else path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file atomically."""
    _replace(path, lambda part: part.write_text(json.dumps(content) + "\n", encoding="utf-8"))


def write_message(path: Path, message: Any) -> int:
    """Write one dataclass of rlrun/data/messages.py atomically. Returns the size of the file."""
    arrays: dict[str, np.ndarray] = {}
    rest = _flatten(message, "", arrays)
    head = {"kind": type(message).__name__, "rest": json.dumps(rest)}
    _replace(path, lambda part: save_file(arrays, part, metadata=head))
    return path.stat().st_size


def read_message(path: Path, kind: type[Message]) -> Message:
    """Read the message in `path`. Raises RecordingError if it is missing, truncated or of another kind."""
    try:
        with safe_open(path, framework="numpy") as file:
            head = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise RecordingError(path, "it is missing") from error
    except (OSError, SafetensorError) as error:
        raise RecordingError(path, f"it is cut short or damaged ({error})") from error
    if head.get("kind") != kind.__name__:
        raise RecordingError(path, f"it holds {head.get('kind')!r}, not {kind.__name__}")
    try:
        return _unflatten(kind, parse_json(head["rest"]), "", arrays)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError(path, f"its content is not that of {kind.__name__} ({error!r})") from error


def check_message(path: Path) -> None:
    """Read only the header and check the file's length. Raises RecordingError."""
    try:
        with safe_open(path, framework="numpy"):
            pass
    except FileNotFoundError as error:
        raise RecordingError(path, "it is missing") from error
    except (OSError, SafetensorError) as error:
        raise RecordingError(path, f"it is cut short or damaged ({error})") from error


def _replace(path: Path, write: typing.Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _flatten(value: Any, prefix: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return `value` as JSON types, with its arrays in `arrays` by their path."""
    if isinstance(value, np.ndarray):
        arrays[prefix] = np.ascontiguousarray(value)
        return None
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _flatten(getattr(value, name), f"{prefix}.{name}", arrays) for name in names}
    if isinstance(value, tuple):
        return [_flatten(item, f"{prefix}.{i}", arrays) for i, item in enumerate(value)]
    return value


def _unflatten(hint: Any, rest: Any, prefix: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """Rebuild a value of type `hint` from the output of `_flatten`: `rest` and arrays."""
    if prefix in arrays:
        return arrays[prefix]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):  # with None
        (hint,) = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        if rest is None:
            return None
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{name: _unflatten(hints[name], rest[name], f"{prefix}.{name}", arrays) for name in rest})
    if typing.get_origin(hint) is tuple:
        kind = typing.get_args(hint)[0]
        return tuple(_unflatten(kind, item, f"{prefix}.{i}", arrays) for i, item in enumerate(rest))
    return rest


def differences(recorded: Any, now: Any, name: str = "") -> Iterator[str]:
    """Return one line per field that differs between two messages of a type; none if they are equal bit for bit.

    Example: "rewards: 3 of 64 differ, first [5, 2, 0]: 0.25 recorded, 0 now; by 0.25 at most"
    """
    if recorded is None or now is None:
        if recorded is not now:
            yield f"{name}: {'none recorded, some now' if recorded is None else 'some recorded, none now'}"
    elif isinstance(recorded, np.ndarray):
        yield from _array_differences(recorded, now, name)
    elif dataclasses.is_dataclass(recorded):
        for field in dataclasses.fields(recorded):
            below = f"{name}.{field.name}" if name else field.name
            yield from differences(getattr(recorded, field.name), getattr(now, field.name), below)
    elif recorded != now:
        yield f"{name}: {recorded!r} recorded, {now!r} now"


def _array_differences(recorded: np.ndarray, now: np.ndarray, name: str) -> Iterator[str]:
    if recorded.shape != now.shape or recorded.dtype != now.dtype:
        yield f"{name}: {recorded.dtype} {recorded.shape} recorded, {now.dtype} {now.shape} now"
        return
    is_float = np.issubdtype(recorded.dtype, np.floating)
    differs = recorded != now
    if is_float:
        differs &= ~(np.isnan(recorded) & np.isnan(now))
    if not differs.any():
        return
    first = tuple(np.argwhere(differs)[0].tolist())
    line = f"{name}: {differs.sum()} of {differs.size} differ, first {list(first)}: "
    line += f"{_format_number(recorded[first])} recorded, {_format_number(now[first])} now"
    if recorded.dtype != bool:
        line += f"; by {np.nanmax(np.abs(recorded.astype(float) - now.astype(float))):.3g} at most"
    yield line


def _format_number(value: Any) -> str:
    return f"{value:.6g}" if np.issubdtype(value.dtype, np.floating) else str(value)
