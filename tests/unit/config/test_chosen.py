"""Counts that follow from others: chosen where nothing is given, recorded, and left alone where something is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rlrun.config import provenance
from rlrun.config.loader import compose_only, load
from rlrun.config.recorded import read_config
from rlrun.config.schema import ActorConfig, RunConfig
from rlrun.system.errors import RunError

PLAIN = ["run=turning_on_radio", "algorithm.global_batch_size=60", "algorithm.horizon=15", "env.num_envs=4"]


def counts(config: RunConfig) -> tuple[int, ...]:
    return config.env.num_workers, config.rollout.num_workers, config.actor.num_workers, config.actor.micro_batch_size


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (2, 2, 2, 30)),
        (["cluster.kind=local"], (1, 1, 1, 60)),
        (["env.num_workers=1"], (1, 1, 2, 30)),
        (["env.num_envs=3", "algorithm.horizon=20"], (1, 1, 1, 60)),
        (["sft.batch_size=7"], (2, 2, 1, 60)),
        (["algorithm.horizon=150", "algorithm.global_batch_size=600"], (2, 2, 2, 150)),
        (["actor.micro_batch_size=10"], (2, 2, 2, 10)),
        (["actor.micro_batch_size=null", "actor.num_workers=1"], (2, 2, 1, 60)),
    ],
)
def test_counts_fit_each_other(arguments: list[str], expected: tuple[int, ...]) -> None:
    assert counts(load([*PLAIN, *arguments])) == expected


@pytest.mark.parametrize(("num_steps", "expected"), [(300, 20), (40, 10), (3, 0), (0, 0)])
def test_the_warm_up_is_a_part_of_the_warm_start(num_steps: int, expected: int) -> None:
    assert load([*PLAIN, f"sft.num_steps={num_steps}"]).sft.lr_warmup_steps == expected


LIBERO = "libero_pi05 libero_gr00t libero_smolvla libero_rlinf libero_simplevla_rl"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (PLAIN, 20),
        ([*PLAIN, "algorithm.name=grpo"], 20),
        ([*PLAIN, "algorithm.name=rloo", "algorithm.rloo.group_size=2"], 20),
        ([*PLAIN, "algorithm.name=reinforce_plus_plus", "policy=smolvla"], 20),
        ([*PLAIN, "policy=pi05"], 20),
        ([*PLAIN, "actor.lr_warmup_steps=3"], 3),
        ([*PLAIN, "sft.num_steps=0"], 0),  # nothing to lose
        (["run=cartpole"], 0),
        (["run=cartpole", "policy.path=somewhere"], 20),
        (["run=halfcheetah_sac"], 0),
        (["policy=smolvla_nft"], 0),
        (["policy=smolvla_dsrl"], 0),
        *((["run=" + name], 0) for name in (*LIBERO.split(), "behavior_ppo_openvla_oft")),  # as published
    ],
)
def test_a_trained_policy_begins_with_small_steps(arguments: list[str], expected: int) -> None:
    assert compose_only(arguments).actor.lr_warmup_steps == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cluster.kind=local", "actor.num_workers=2"], "room for one actor rank"),
        (["actor.micro_batch_size=7"], "whole micro batches"),
        (["sft.num_steps=3", "sft.lr_warmup_steps=20"], "before its learning rate"),
        (["env.num_workers=3"], "no multiple"),
        (["env.num_envs=0"], "out of range"),
    ],
)
def test_what_is_given_stays_and_is_checked(arguments: list[str], message: str) -> None:
    with pytest.raises(RunError, match=message):
        load([*PLAIN, *arguments])


def test_numbers_are_recorded_and_a_resumed_run_keeps_them(tmp_path: Path) -> None:
    config = load([*PLAIN, "cluster.kind=local"])
    assert type(config.actor) is ActorConfig, "pickled by its own module"
    provenance.write(config, tmp_path)
    tree = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert tree["actor"]["num_workers"] == 1 and tree["actor"]["micro_batch_size"] == 60
    again = load([], recorded=read_config(tmp_path / "config.yaml"))
    assert counts(again) == counts(config)
    changed = load(["cluster.kind=ray"], recorded=read_config(tmp_path / "config.yaml"))
    assert counts(changed) == counts(config), "a recorded number is a given one"
