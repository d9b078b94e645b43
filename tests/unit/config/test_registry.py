"""Kinds from outside: found by name or as module:ATTRIBUTE, with a section of their own that is checked like others."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.config import provenance
from rlrun.config.loader import load
from rlrun.config.registry import Registry
from rlrun.config.sections import folder_of
from rlrun.system.errors import RunError

MODULE = '''
from dataclasses import dataclass, field
from rlrun.config.sections import COUNT, bounded
from rlrun.config.sections import Section
from rlrun.system.errors import RunError


@dataclass
class GridConfig(Section):
    """A grid."""

    size: int = bounded(5, COUNT)  # cells to each side
    walls: list[int] = field(default_factory=list)


class Spec:
    name = "grid"
    section = GridConfig

    def check(self, config):
        if config.num_steps == 13:
            yield RunError("Thirteen steps bring bad luck.", key="num_steps", value=13)


SPEC = Spec()
NAMELESS = object()
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "grid_for_test.py").write_text(MODULE)
    (tmp_path / "grid_for_test-1.0.dist-info").mkdir()
    (tmp_path / "grid_for_test-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: grid-for-test\n")
    points = "grid = grid_for_test:SPEC\nother = grid_for_test:SPEC\nbroken = grid_for_test_missing:SPEC\n"
    (tmp_path / "grid_for_test-1.0.dist-info" / "entry_points.txt").write_text(f"[rlrun.for_test]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("grid_for_test", None)


@pytest.fixture
def registry(folder: Path) -> Registry:
    return Registry("rlrun.for_test", "grid", "env.simulator")


def test_found_by_name_and_by_location(registry: Registry) -> None:
    assert registry.names() == ["broken", "grid", "other"]
    assert registry.get("grid").name == "grid"
    assert registry.get("grid") is registry.get("grid_for_test:SPEC")
    assert registry.location("grid") == "grid_for_test:SPEC"
    assert [spec.name for spec in registry.installed()] == ["grid"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grit", ["There is no grid 'grit'", "Did you mean env.simulator=grid?"]),
        ("broken", ["cannot be imported", "grid_for_test_missing"]),
        ("other", ["does not describe", "called 'other'", "is 'grid'"]),
        ("grid_for_test:MISSING", ["cannot be imported", "MISSING"]),
        ("grid_for_test:NAMELESS", ["does not describe", "no name, section, check"]),
    ],
)
def test_refused(registry: Registry, name: str, words: list[str]) -> None:
    with pytest.raises(RunError) as caught:
        registry.get(name)
    assert all(word in str(caught.value) for word in words), caught.value
    assert (caught.value.key, caught.value.value) == ("env.simulator", name)


def test_a_part_of_a_spec_is_imported_when_it_is_used(registry: Registry) -> None:
    spec = registry.get("grid")
    spec.world, spec.walls = "grid_for_test:GridConfig", "grid_for_test:Walls"
    assert registry.part(spec, "world") is spec.section
    spec.parts = SimpleNamespace(world=spec.world)
    assert registry.part(spec, "parts.world") is spec.section
    with pytest.raises(
        RunError, match=r"(?s)The grid 'grid' cannot be imported.*grid_for_test:Walls: AttributeError"
    ) as caught:
        registry.part(spec, "walls")
    assert (caught.value.key, caught.value.value) == ("env.simulator", "grid")


def test_a_configuration_brings_its_path_to_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module lies in a folder of --config-dir, and is named in YAML; another process finds it to unpickle."""
    folder = tmp_path / "conf" / "run"
    folder.mkdir(parents=True)
    (folder / "grid_for_yaml.py").write_text(
        MODULE
        + "from rlrun.config.simulator_spec import SimulatorSpec\n"
        + "from rlrun.config.simulator_spec import PlannedSpaces, WorldSpec\n"
        + "WORLD = WorldSpec(lambda env: PlannedSpaces(0, 1, 1))\n"
        + "SPEC = SimulatorSpec('grid', print, WORLD, GridConfig, SPEC.check)\n"
    )
    text = (
        "# @package _global_\ndefaults: [cartpole, _self_]\nenv: {simulator: 'grid_for_yaml:SPEC', grid: {size: 7}}\n"
    )
    (folder / "mine.yaml").write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    config = load(["run=mine"], str(tmp_path / "conf"))
    assert config.python_path == [str(folder)]
    assert provenance.diff_from_defaults(config)["env"]["grid"] == {"size": 7}
    with pytest.raises(RunError, match="bad luck"):
        load(["run=mine", "num_steps=13"], str(tmp_path / "conf"))
    with pytest.raises(RunError, match="out of range"):
        load(["run=mine", "env.grid.size=0"], str(tmp_path / "conf"))
    with pytest.raises(RunError) as caught:
        load(["run=mine", "env.grid.seize=1"], str(tmp_path / "conf"))
    assert "Did you mean 'env.grid.size'?" in str(caught.value)
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).env.sections['grid'].size)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, input=pickle.dumps(config), capture_output=True, timeout=60, check=False)
    assert done.stdout.split() == [b"7"], done.stderr
    sys.modules.pop("grid_for_yaml", None)


def test_the_folder_of_a_module(folder: Path, tmp_path: Path) -> None:
    assert folder_of("grid_for_test:SPEC", [Path("/"), folder]) == folder
    assert folder_of("json:loads", [folder]) is None
