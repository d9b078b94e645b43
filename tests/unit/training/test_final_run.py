"""After it was composed a configuration changes in one place, and a run has one configuration."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.controller.controller import Controller
from rlrun.envs.omnigibson.spec import OmniGibsonConfig
from rlrun.placement.inventory import Accelerator, Inventory, NodeInfo
from rlrun.system.errors import OUT_OF_MEMORY, RunError
from rlrun.training.final_run import final_run
from rlrun.training.lifecycle import Run
from rlrun.training.session import Session

LAPTOP = Inventory((NodeInfo("n", "", 8, 10**11, ()),))
CARD = Inventory((NodeInfo("n", "", 64, 10**12, (Accelerator("RTX 4090", 24 * 10**9, True),)),))


def test_a_run_has_numbers_and_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    composed = load(["run=cartpole", "env.num_workers=auto"])
    found = final_run(composed, LAPTOP)
    assert found.config is found.work.config and not found.config.auto and composed.auto
    assert Path(str(found.config.output_dir)).is_dir() and Path(str(found.config.output_dir)).is_absolute()


def test_a_refused_run_has_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    far = ["placement.nodes={far: {names: [elsewhere]}}", "placement.roles={env: {on: far}}"]
    with pytest.raises(RunError):
        final_run(load(["run=cartpole", *far]), LAPTOP, ["env"])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("is_evaluation", "rooms"), [(False, None), (True, [])])
def test_an_evaluation_is_in_the_world_of_evaluations(
    is_evaluation: bool, rooms: list[str] | None, tmp_path: Path
) -> None:
    config = load(["run=cartpole", "policy.kind=cnn", "env=omnigibson", f"output_dir={tmp_path}"])
    found = final_run(config, CARD, ["env"], is_evaluation)
    assert found.config.env.section(OmniGibsonConfig).load_room_types == rooms


def test_a_run_has_one_configuration_after_it_took_less_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[RunConfig] = []
    controller = Controller.__new__(Controller)
    controller.config = load(["run=cartpole", "actor.micro_batch_size=16"])
    controller.workers = SimpleNamespace(configure=given.append)  # type: ignore[assignment]
    controller._startup = SimpleNamespace(configure=given.append)  # type: ignore[assignment]
    session = Session.__new__(Session)
    for name, value in {"controller": controller, "run_dir": tmp_path}.items():
        object.__setattr__(session, name, value)
    object.__setattr__(session, "console", SimpleNamespace(warning=lambda text: None))
    run = Run.__new__(Run)
    run.session, run.controller, run._has_updated = session, controller, False
    run.progress = SimpleNamespace(step=0)  # type: ignore[assignment]
    monkeypatch.setattr(Run, "rewind", lambda self, failure: None)
    assert run._take_less_memory(RunError("no room", cause="2 GiB", kind=OUT_OF_MEMORY))
    assert run.config is session.config is controller.config is given[0] is given[1]
    assert run.config.actor.micro_batch_size == 8
