"""Recording of a run on disk: one file per message, written atomically.

recording.json                               configuration and versions of the recorded run
start/step_00000002/                         checkpoint of the actor before the first recorded step
step-000002/env-0/observation-00004.safetensors, actions-00004.safetensors, trajectory-1.safetensors (for actor/1)
step-000002/actor-0/weights-00000.safetensors (bucket 0 of the weights after the step), and update.json, written last
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.data import checkpoint_folder
from rlrun.data.message_files import SUFFIX, MessageFileError
from rlrun.system.local_files import read_json

RECORDING_FOLDER = "recording"  # in the run folder
MANIFEST = "recording.json"
START = "start"
METRICS = "update.json"  # of an update, as actor rank 0 sent them to the driver
FORMAT = 3  # 2 held the weights as they were sent, with the base under adapters


@dataclass(frozen=True)
class Recording:
    """Paths of a recording under `folder`."""

    folder: Path

    def worker_folder(self, step: int, worker: str) -> Path:
        """Return the folder of the messages that a worker ("role/rank") sent and received in a training step."""
        return self.folder / f"step-{step:06}" / worker.replace("/", "-")

    def message(self, step: int, worker: str, edge: str, number: int) -> Path:
        """Return the file of one message."""
        width = 1 if edge == "trajectory" else 5
        return self.worker_folder(step, worker) / f"{edge}-{number:0{width}}{SUFFIX}"

    def messages(self, step: int, worker: str, edge: str) -> list[Path]:
        """Return the messages of an edge, numbered from 0. Raises MessageFileError if one between them is missing."""
        found = sorted(self.worker_folder(step, worker).glob(f"{edge}-*{SUFFIX}"))
        for number, path in enumerate(found):
            if path != self.message(step, worker, edge, number):
                raise MessageFileError(self.message(step, worker, edge, number), "it is missing, but later ones exist")
        return found

    def steps(self) -> list[int]:
        """Return the training steps with recorded messages."""
        names = [path.name.partition("-")[2] for path in self.folder.glob("step-*")]
        return sorted(int(name) for name in names if name.isdigit())

    def start(self) -> tuple[int, Path] | None:
        """Return the first step recorded for the actor and the checkpoint before it, or None if it was not recorded."""
        found = checkpoint_folder.list_complete(self.folder / START)
        return (int(found[0].name.rpartition("_")[2]), found[0]) if found else None

    def manifest(self) -> dict[str, Any]:
        """Return the content of `recording.json`. Raises MessageFileError."""
        path = self.folder / MANIFEST
        try:
            found = read_json(path)
        except OSError as error:
            raise MessageFileError(path, "the folder has no recording") from error
        except ValueError as error:
            raise MessageFileError(path, "it is damaged") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise MessageFileError(path, f"it is not of format {FORMAT}, which this version reads")
        if not all(isinstance(found.get(name), dict) for name in ("config", "packages")):
            raise MessageFileError(path, "it lacks the configuration or the versions of the recorded run")
        return found


def find_recording(path: Path) -> Recording:
    """Return the recording of a run folder, or the recording at `path` itself."""
    return Recording(path / RECORDING_FOLDER if (path / RECORDING_FOLDER).is_dir() else path)
