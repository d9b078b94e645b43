"""What runs that start together make for the same place in the cache, and what is damaged there."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.config.schema import RunConfig
from rlrun.data import checksums
from rlrun.envs.gymnasium.spec import GymnasiumConfig
from rlrun.system.errors import ExitStatus, RunError
from rlrun.training import policy_folders
from rlrun.training.policy_folders import _made_once, first_policy


def made(run_dir: Path, folder: Path, during=lambda: None) -> None:
    """By the run of `run_dir`, whose name is its content; during: what happens elsewhere while it makes it."""

    def make(draft: Path) -> None:
        assert draft.parent == folder.parent and not draft.exists()
        draft.mkdir(parents=True)
        (draft / "content").write_text(run_dir.name)
        during()

    _made_once(SimpleNamespace(run_dir=run_dir), folder, make)


def test_the_first_of_two_runs_keeps_the_place(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "demos-1"
    made(tmp_path / "late", cache, during=lambda: made(tmp_path / "early", cache))
    assert (cache / "content").read_text() == "early"
    assert [entry.name for entry in cache.parent.iterdir()] == [cache.name], "drafts are left"


def test_what_cannot_be_moved_is_told(tmp_path: Path) -> None:
    (tmp_path / "demos-1").write_text("a file in the way")
    with pytest.raises(OSError, match="demos-1"):
        made(tmp_path / "run", tmp_path / "demos-1")


def written(folder: Path) -> Path:
    """A policy folder as an export leaves it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"hidden_size": 64}')
    (folder / "model.safetensors").write_bytes(bytes(range(256)))
    checksums.write(folder)
    return folder


class Run:
    """A session whose demonstrations and imitation take no time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.config, self.run_dir = RunConfig(), folder / "run"
        self.config.cache_dir = str(folder / "cache")
        self.notes: list[str] = []
        self.console = SimpleNamespace(note=self.notes.append)
        self.phase, self.progress = lambda *_: nullcontext(), lambda: None
        self.num_made = 0
        self.worlds = [{"mujoco": "3.3.7", "tasks": "1"}, {"mujoco": "3.3.7", "tasks": "1"}]  # of two env workers
        self.controller = SimpleNamespace(
            record_demos=lambda draft: self.imitate(self, Path(), Path(draft)), fingerprints=lambda: self.worlds
        )
        monkeypatch.setattr(policy_folders, "imitate", self.imitate)

    def imitate(self, session: object, dataset: Path, draft: Path) -> None:
        self.num_made += 1
        written(draft)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """With demonstrations and a policy in its cache."""
    run = Run(tmp_path, monkeypatch)
    first_policy(run)
    assert run.num_made == 2
    run.num_made = 0
    run.notes.clear()
    return run


def flipped(file: Path) -> None:
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])


DAMAGES = {
    "weights: one bit": ("model.safetensors", flipped),
    "weights: truncated": ("model.safetensors", lambda file: file.write_bytes(file.read_bytes()[:100])),
    "weights: zeros": ("model.safetensors", lambda file: file.write_bytes(bytes(256))),
    "description: cut": ("config.json", lambda file: file.write_text('{"hidden')),
    "description: emptied": ("config.json", lambda file: file.write_text("")),
    "description: missing": ("config.json", Path.unlink),
    "checksums: one bit": ("checksums.json", flipped),
    "checksums: missing": ("checksums.json", Path.unlink),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_policy_in_the_cache_is_made_again(run: Run, damage: str) -> None:
    name, strike = DAMAGES[damage]
    folder = first_policy(run)
    run.notes.clear()
    strike(folder / name)
    assert first_policy(run) == folder and run.num_made == 1
    assert f"cached policy, {folder}: damaged ({name}" in run.notes[0] and "made again" in run.notes[0]
    assert checksums.find_corruption(folder) == []
    assert sorted(entry.name[:3] for entry in folder.parent.iterdir()) == ["dem", "sft"]
    run.notes.clear()
    first_policy(run)
    assert run.num_made == 1 and len(run.notes) == 1  # where it is


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_demonstrations_in_the_cache_are_recorded_again(run: Run, damage: str) -> None:
    name, strike = DAMAGES[damage]
    folder = policy_folders.demonstrations(run)
    run.notes.clear()
    strike(folder / name)
    assert policy_folders.demonstrations(run) == folder and run.num_made == 1
    assert (
        f"cached demonstrations, {folder}: damaged ({name}" in run.notes[0] and checksums.find_corruption(folder) == []
    )


def test_an_empty_folder_in_the_cache_is_made_anew(run: Run) -> None:
    folder = first_policy(run)
    for file in folder.iterdir():
        file.unlink()
    assert first_policy(run) == folder and run.num_made == 1


def replaced_dataset(folder: Path, content: str) -> str:
    """A folder that looks like a dataset to the cache."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "meta").mkdir(parents=True)
    (folder / "meta/info.json").write_text(content)
    return str(folder)


def test_other_data_at_the_same_path_are_imitated_again(run: Run, tmp_path: Path) -> None:
    run.config.demos.path = replaced_dataset(tmp_path / "mine", "one")
    first = first_policy(run)
    assert first_policy(run) == first and run.num_made == 1
    run.config.demos.memory_gb = 1.0
    assert first_policy(run) == first, "where pictures are held changes nothing"
    replaced_dataset(tmp_path / "mine", "other")
    assert first_policy(run) != first and run.num_made == 2


def test_an_edited_world_is_demonstrated_again(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_edited_world.py").write_text("GRAVITY = 9.81")
    run.config.env.sections["gymnasium"] = GymnasiumConfig(id="my_edited_world:Reach-v0")
    first = policy_folders.demonstrations(run)
    assert policy_folders.demonstrations(run) == first
    (tmp_path / "my_edited_world.py").write_text("GRAVITY = 1.62")
    assert policy_folders.demonstrations(run) != first


@pytest.mark.parametrize("other", [{"mujoco": "3.4.0", "tasks": "1"}, {"mujoco": "3.3.7", "tasks": "2"}])
def test_other_assets_or_versions_of_the_env_workers_are_demonstrated_and_imitated_again(
    run: Run, other: dict[str, str]
) -> None:
    """They are those of the env workers' own interpreter, which the driver does not have."""
    first = first_policy(run), policy_folders.demonstrations(run)
    run.worlds = run.worlds[:1]
    assert (first_policy(run), policy_folders.demonstrations(run)) == first  # of fewer env workers
    run.worlds = [other]
    assert first_policy(run) != first[0] and policy_folders.demonstrations(run) != first[1]


def test_edited_sources_imitate_and_demonstrate_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = first_policy(run), policy_folders.demonstrations(run)
    monkeypatch.setattr(policy_folders, "computing_digest", lambda config: "of an edited imitation step")
    assert first_policy(run) != first[0] and policy_folders.demonstrations(run) != first[1]
    assert run.num_made == 2


class Imitating:
    """A console and a controller whose imitation gave these metrics."""

    def __init__(self, metrics: dict[str, float]):
        self.config, self.warnings = RunConfig(), []
        self.console = SimpleNamespace(note=lambda text: None, warning=self.warnings.append)
        self.phase = lambda *_: nullcontext()
        self.controller = SimpleNamespace(imitate=lambda dataset, cameras: metrics, export=lambda folder: None)


def test_skipped_steps_of_imitation_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_folders, "fitting_cameras", lambda session, dataset: None)
    for skipped in (0.0, 7.0):
        session = Imitating({"imitation_loss": 1.0, "num_nonfinite": skipped})
        policy_folders.imitate(session, tmp_path, tmp_path)
        assert [text.partition(" optimizer")[0] for text in session.warnings] == ["7 of 300"] * bool(skipped)


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "checksums: missing"])
def test_a_damaged_policy_of_a_person_is_refused_by_file_name(run: Run, tmp_path: Path, damage: str) -> None:
    name, strike = DAMAGES[damage]
    folder = written(tmp_path / "mine")
    run.config.policy.path = str(folder)
    assert first_policy(run) == folder
    strike(folder / name)
    with pytest.raises(RunError) as refused:
        first_policy(run)
    error = refused.value
    assert (error.key, error.value, error.exit_status) == ("policy.path", str(folder), ExitStatus.bad_input)
    assert name in error.cause and folder.is_dir(), "what a person gave is never removed"


def test_content_is_not_read_where_nobody_wants_it(run: Run, tmp_path: Path) -> None:
    folder = written(tmp_path / "mine")
    run.config.policy.path, run.config.checkpoint.verify = str(folder), False
    flipped(folder / "model.safetensors")
    assert first_policy(run) == folder


def test_an_official_folder_has_no_checksums(run: Run, tmp_path: Path) -> None:
    folder = written(tmp_path / "official")
    (folder / "checksums.json").unlink()
    run.config.policy.path = str(folder)
    assert first_policy(run) == folder
