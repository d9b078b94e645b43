"""A resumed run tells what it does otherwise: each key, another batch, a learning rate that restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.config.provenance import POLICY_CONFIG, recorded_yaml
from rlrun.config.schema import LrSchedule, RunConfig
from rlrun.training.run_folder import changed_course, changed_keys, for_more_steps

BASE = ("run=cartpole", "num_steps=40")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "step_00000040"


def made_by(checkpoint: Path, *overrides: str) -> None:
    (checkpoint / "policy").mkdir(parents=True)
    (checkpoint / "policy" / POLICY_CONFIG).write_text(recorded_yaml(load([*BASE, *overrides])))


def test_the_same_configuration_says_nothing(checkpoint: Path) -> None:
    made_by(checkpoint)
    config = load([*BASE, f"output_dir={checkpoint.parent}", f"checkpoint.resume={checkpoint}"])
    assert changed_keys(checkpoint, config) == changed_course(checkpoint, config, 40) == []


def test_each_changed_key_is_told(checkpoint: Path) -> None:
    made_by(checkpoint, "actor.lr=3e-4", "placement.roles.actor=0")
    config = load([*BASE, "actor.lr=0.5", "seed=7", "placement.roles.actor=0-1", "logging.project=a b"])
    assert sorted(changed_keys(checkpoint, config)) == [
        "actor.lr was 0.0003, is 0.5",
        "logging.project was rlrun, is a b",
        "placement.roles was {actor: 0}, is {actor: 0-1}",
        "seed was 0, is 7",
    ]


def test_a_checkpoint_without_a_configuration_says_nothing(checkpoint: Path) -> None:
    config = load(list(BASE))
    assert changed_keys(checkpoint, config) == changed_course(checkpoint, config, 40) == []


def test_another_batch_is_told_with_numbers(checkpoint: Path) -> None:
    sizes = ("algorithm.horizon=8", "algorithm.global_batch_size=32", "actor.micro_batch_size=8")
    made_by(checkpoint, "env.num_envs=4", "algorithm.update_epochs=1", "actor.num_workers=1", *sizes)
    config = load([*BASE, "env.num_envs=8", "algorithm.update_epochs=2", "actor.num_workers=2", *sizes])
    assert changed_course(checkpoint, config, 40) == [
        "the batch changes: a training step learned from 32 chunk steps (4 envs x 8 x 1) in 1 optimizer steps of 32; "
        "from now on it learns from 64 chunk steps (8 envs x 8 x 1) in 4 optimizer steps of 32",
        "the chunk steps of a forward pass over all actor ranks were 8 (1 ranks x 8), are 16 (2 ranks x 8)",
    ]


def test_what_fills_a_minibatch_is_told(checkpoint: Path) -> None:
    made_by(checkpoint)
    (told,) = changed_course(checkpoint, load([*BASE, "algorithm.minibatch_of=collected_steps"]), 40)
    assert told.startswith("the batch changes") and told.endswith("counted in collected_steps")


def test_another_batch_is_told_of_a_run_that_could_not_say_what_fills_a_minibatch(checkpoint: Path) -> None:
    made_by(checkpoint)
    file = checkpoint / "policy" / POLICY_CONFIG
    older = [line for line in file.read_text().splitlines(keepends=True) if "minibatch_of" not in line]
    file.write_text("".join(older))
    assert changed_course(checkpoint, load(list(BASE)), 40) == []
    (told,) = changed_course(checkpoint, load([*BASE, "algorithm.update_epochs=3"]), 40)
    assert told.startswith("the batch changes") and "counted in" not in told


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_learning_rate_that_rises_again_is_told(checkpoint: Path, schedule: str) -> None:
    falling = (f"actor.lr_schedule={schedule}", "actor.lr=1e-3")
    made_by(checkpoint, *falling)
    (told,) = changed_course(checkpoint, load([*BASE, *falling, "num_steps=80"]), 40)
    assert "the learning rate rises from" in told and "to 0.0005 in step 41" in told
    if schedule == "linear":
        assert "from 2.5e-05 in step 40" in told and "20 times as much" in told
    assert changed_course(checkpoint, load([*BASE, *falling]), 20) == [], "it goes on as it would have"


def test_the_command_for_more_steps_keeps_a_fallen_learning_rate(checkpoint: Path) -> None:
    constant, falling = ("actor.lr_schedule=constant",), ("actor.lr_schedule=linear", "actor.lr=1e-3")
    assert for_more_steps("go", load([*BASE, *constant]), 40) == "for more steps: go num_steps=80"
    made_by(checkpoint, *falling)
    told = for_more_steps("go", load([*BASE, *falling]), 40)
    command, remark = told.removeprefix("for more steps: go ").split("\n")
    assert "2.5e-05" in remark and "0.0005" in remark
    assert command.split() == [
        *("num_steps=80", "actor.lr_schedule=constant", "actor.lr=2.5e-05"),
        f"actor.value_lr={load(list(BASE)).actor.value_lr / 40:.3g}",
    ]
    assert changed_course(checkpoint, load([*BASE, *command.split()]), 40) == []


def test_the_command_for_more_steps_names_no_key_without_effect() -> None:
    config = RunConfig()
    config.algorithm.name, config.actor.lr_schedule = "grpo", LrSchedule.linear
    told = for_more_steps("go", config, 40)
    assert "actor.lr=" in told and "value_lr" not in told


def test_replay_buffers_that_are_left_or_begin_empty_are_told(checkpoint: Path) -> None:
    keys = ("run=halfcheetah_sac", "env.num_envs=4")
    made_by(checkpoint, *keys, "actor.num_workers=2")
    (fewer,) = [text for text in changed_course(checkpoint, load([*BASE, *keys]), 40) if "replay" in text]
    assert "of the replay buffers of 2 actor ranks, those of the first 1 go on" in fewer
    more = changed_course(checkpoint, load([*BASE, *keys, "actor.num_workers=4"]), 40)
    assert any("2 of 4 actor ranks begin with an empty replay buffer" in text for text in more)


def test_more_steps_of_a_run_that_its_minutes_ended() -> None:
    """Its minutes are restored, so that the same limit would end it at once."""
    assert " max_minutes=null" in for_more_steps("rlrun", load(["run=debug", "max_minutes=10"]), 3)
    assert "max_minutes" not in for_more_steps("rlrun", load(["run=debug"]), 3)
