"""A digest of a world's sources changes with what the world imports, and with nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlrun.config import sources
from rlrun.config.loader import load
from rlrun.config.sources import computing_digest, world_digest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A world of three modules, one of them unused, and a package."""
    (tmp_path / "a_world.py").write_text("import a_physics\nraise RuntimeError('imported')")
    (tmp_path / "a_physics.py").write_text("G = 9.81")
    (tmp_path / "a_stranger.py").write_text("")
    (tmp_path / "a_package/assets").mkdir(parents=True)
    (tmp_path / "a_package/__init__.py").write_text("")
    (tmp_path / "a_package/assets/arm.xml").write_text("<mujoco/>")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("env", "file", "is_part"),
    [
        ({"gymnasium": {"id": "a_world:Reach-v0"}}, "a_world.py", True),
        ({"gymnasium": {"id": "a_world:Reach-v0"}}, "a_physics.py", True),
        ({"gymnasium": {"id": "a_world:Reach-v0"}}, "a_stranger.py", False),
        ({"simulator": "a_package.spec:SPEC"}, "a_package/assets/arm.xml", True),
        ({"gymnasium": {"kwargs": {"wrappers": ["a_package:Wrapped"]}}}, "a_package/__init__.py", True),
        ({"simulator": "gymnasium", "gymnasium": {"id": "CartPole-v1"}}, "a_world.py", False),
        ({"reward": "a_world:reach"}, "a_physics.py", True),
        ({"reward": {"reach": {"function": "a_world:reach", "weight": 2.0}}}, "a_world.py", True),
    ],
)
def test_what_belongs_to_a_world(folder: Path, env: dict, file: str, is_part: bool) -> None:
    before = world_digest(env)
    assert world_digest(env) == before
    (folder / file).write_text("# edited")
    assert (world_digest(env) != before) == is_part
    assert not {"a_world", "a_package"} & set(sys.modules), "nothing is imported"


def test_a_world_that_is_not_here_has_the_digest_of_nothing() -> None:
    nothing = world_digest({})
    assert world_digest({"simulator": "no_such_module:SPEC"}) == nothing


@pytest.mark.parametrize("env", [{"simulator": "libero"}, {"libero": {"expert": "rlrun.envs.libero.experts:reach"}}])
def test_a_world_of_rlrun_changes_with_its_own_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict
) -> None:
    monkeypatch.setattr(sources, "_OWN", tmp_path)
    for package in ("libero", "embedded"):
        (tmp_path / "rlrun/envs" / package).mkdir(parents=True)
        (tmp_path / "rlrun/envs" / package / "__init__.py").write_text("")
    before = world_digest(env)
    (tmp_path / "rlrun/envs/embedded/world.py").write_text("G = 9.81")
    assert world_digest(env) == before
    (tmp_path / "rlrun/envs/libero/painter.py").write_text("DETAIL = 0.5")
    assert world_digest(env) != before


@pytest.mark.parametrize("package", ["actor", "algorithms", "data", "envs", "policies", "workers"])
def test_what_computes_a_cached_thing_is_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """An edited imitation loss makes another policy under the same version number."""
    config = load(["run=debug"])
    monkeypatch.setattr(sources, "_OWN", tmp_path)
    file = tmp_path / "rlrun" / package / "inner" / "imitation.py"
    file.parent.mkdir(parents=True)
    file.write_text("LOSS = 1")
    before = computing_digest(config)
    assert computing_digest(config) == before
    file.write_text("LOSS = 2")
    assert computing_digest(config) != before
