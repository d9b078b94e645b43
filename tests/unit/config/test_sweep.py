"""Arguments of a sweep, as Hydra users write them, and the runs that they make."""

from __future__ import annotations

import pytest

from rlrun.config.loader import entry_point
from rlrun.config.program import SweepRequest, expand
from rlrun.config.schema import RunConfig
from rlrun.system.errors import RunError


def test_all_combinations_in_order_with_names_of_what_differs() -> None:
    runs = expand(["run=cartpole", "actor.lr=1e-4,2e-4", "seed=range(0,2)"], lambda arguments: "pole")
    assert [run.label for run in runs] == ["lr=1e-4,seed=0", "lr=1e-4,seed=1", "lr=2e-4,seed=0", "lr=2e-4,seed=1"]
    assert runs[3].name == "pole_lr=2e-4,seed=1"
    assert runs[3].arguments == ("run=cartpole", "actor.lr=2e-4", "seed=1")


def test_keys_that_end_alike_keep_more_of_their_names() -> None:
    assert expand(["actor.lr=1,2", "sft.lr=3,4"], str)[0].label == "actor.lr=1,sft.lr=3"


def test_lists_are_values_and_have_folders_of_their_own() -> None:
    labels = [run.label for run in expand(["env.embedded.cameras=[a,b],[c]"], str)]
    assert len(set(labels)) == 2 and not any(set(label) & set("[]/ ") for label in labels)


@pytest.mark.parametrize("arguments", [["seed=1"], ["seed=interval(0,1)"], []])
def test_what_is_no_sweep_is_refused(arguments: list[str]) -> None:
    with pytest.raises(RunError, match="sweep|values"):
        expand(arguments, str)


def test_every_configuration_is_checked_before_a_run_starts(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[SweepRequest] = []

    def start(request: SweepRequest, script: str | None) -> int:
        asked.append(request)
        return 3

    @entry_point("Sweeps.", sweep=start)
    def program(config: RunConfig) -> None: ...

    def status(*arguments: str) -> object:
        with pytest.raises(SystemExit) as ended:
            program(list(arguments))
        return ended.value.code

    assert status("-m", "run=cartpole", "seed=0,1", "output_dir=here") == 3
    assert (asked[0].name, asked[0].output_dir, len(asked[0].runs)) == ("cartpole", "here", 2)
    assert status("-m", "run=cartpole", "seed=0,1", "--cfg", "job") == 0 and len(asked) == 1
    assert capsys.readouterr().out == "seed=0: run=cartpole seed=0\nseed=1: run=cartpole seed=1\n"
    assert status("-m", "run=cartpole,debug") == 3
    assert [run.name for run in asked[1].runs] == ["cartpole_run=cartpole", "debug_run=debug"]
    assert asked[1].name == "sweep"
    assert status("--multirun", "env.num_envs=4,7", "env.num_workers=2") == 2 and len(asked) == 2
    assert "env.num_envs" in capsys.readouterr().err
