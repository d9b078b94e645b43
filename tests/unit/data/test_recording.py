"""Messages on disk: reading returns what was written, or raises an error that names the file."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlrun.data import message_files, recording
from rlrun.data.message_files import MessageFileError, check_message, read_message, write_message
from rlrun.data.recording import Recording, find_recording
from rlrun.edges.actions import ActionChunk
from rlrun.edges.frames import Frames
from rlrun.edges.observations import Observation
from rlrun.edges.trajectories import Trajectory
from rlrun.edges.weights import TensorSlice, WeightBucket
from tests.unit.actor.tiny_run import trajectory
from tests.unit.data.messages import assert_same


def frames(num_rows: int) -> Frames:
    draw = np.random.default_rng(num_rows)
    images = draw.integers(0, 256, (num_rows, 1, 4, 4, 3), dtype=np.uint8)
    return Frames(images, draw.standard_normal((num_rows, 5)).astype(np.float32), ("push",) * num_rows)


def observation(finals: Frames | None = None) -> Observation:
    return Observation(1, frames(3), np.array([0, 2**64 - 1, 7], np.uint64), 0.5, finals)


def actions() -> ActionChunk:
    draw = np.random.default_rng(5)
    numbers = draw.standard_normal((3, 2, 4)).astype(np.float32)
    numbers[0, 0] = [np.nan, np.inf, -0.0, 1e-40]
    tokens = draw.integers(0, 256, (3, 8)).astype(np.uint8)
    return ActionChunk(numbers, tokens, numbers.reshape(3, 8), numbers[:, 0, 0], None, 4)


def bucket() -> WeightBucket:
    slices = (TensorSlice("a.weight", "bfloat16", (2, 3), 0, 12), TensorSlice("b", "float32", (), 64, 4))
    return WeightBucket(3, 0, 1, slices, np.arange(68, dtype=np.uint8), 12)


@pytest.mark.parametrize("message", [observation(), observation(frames(1)), actions(), trajectory(), bucket()])
def test_every_message_comes_back(tmp_path, message):
    num_bytes = write_message(tmp_path / "a.safetensors", message)
    back = read_message(tmp_path / "a.safetensors", type(message))
    assert_same(back, message)
    assert num_bytes == (tmp_path / "a.safetensors").stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_strided_arrays(tmp_path):
    whole = actions()
    turned = dataclasses.replace(whole, actions=np.asfortranarray(whole.actions)[::-1])
    write_message(tmp_path / "a.safetensors", turned)
    assert_same(read_message(tmp_path / "a.safetensors", ActionChunk), turned)


def test_a_file_that_is_cut_short(tmp_path):
    path = tmp_path / "a.safetensors"
    write_message(path, trajectory())
    content = path.read_bytes()
    for kept in (0, 5, len(content) - 1):
        path.write_bytes(content[:kept])
        with pytest.raises(MessageFileError, match="cut short"):
            read_message(path, Trajectory)
        with pytest.raises(MessageFileError, match="cut short"):
            check_message(path)


def test_a_missing_file_and_one_of_another_kind(tmp_path):
    with pytest.raises(MessageFileError, match="missing"):
        read_message(tmp_path / "a.safetensors", Trajectory)
    write_message(tmp_path / "a.safetensors", actions())
    with pytest.raises(MessageFileError, match="'ActionChunk', not Trajectory"):
        read_message(tmp_path / "a.safetensors", Trajectory)


@pytest.mark.parametrize("rest", ["[" * 5000, "[1]", "{}", '{"images": 3, "evil": 1}', '"text"', None])
def test_a_message_that_somebody_else_made(tmp_path, rest):
    path = tmp_path / "a.safetensors"
    head = {"kind": "Observation"} | ({} if rest is None else {"rest": rest})
    save_file({".x": np.zeros(1)}, path, metadata=head)
    with pytest.raises(MessageFileError, match="its content is not that of Observation"):
        read_message(path, Observation)


def test_a_failing_write_leaves_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write_message(path, actions())
    before = path.read_bytes()

    def fail(arrays, part, metadata):
        part.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(message_files, "save_file", fail)
    with pytest.raises(OSError, match="No space"):
        write_message(path, observation())
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_a_gap_between_messages(tmp_path):
    held = Recording(tmp_path)
    for number in (0, 1, 2):
        write_message(held.message(4, "env/1", "actions", number), actions())
    assert len(held.messages(4, "env/1", "actions")) == 3 and held.steps() == [4]
    held.message(4, "env/1", "actions", 1).unlink()
    with pytest.raises(MessageFileError, match="missing"):
        held.messages(4, "env/1", "actions")


def test_manifest_missing_damaged_or_of_another_format(tmp_path):
    for text in (None, "{", '{"format": 99}', '{"format": 2}', '{"format": 3}', '{"format": 3, "config": []}', "[]"):
        if text is not None:
            (tmp_path / recording.MANIFEST).write_text(text)
        with pytest.raises(MessageFileError):
            Recording(tmp_path).manifest()


def test_a_run_folder_or_the_recording_itself(tmp_path):
    (tmp_path / "run" / recording.RECORDING_FOLDER).mkdir(parents=True)
    assert find_recording(tmp_path / "run") == find_recording(tmp_path / "run" / recording.RECORDING_FOLDER)
