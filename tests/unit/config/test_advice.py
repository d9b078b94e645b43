"""Remedies of refused arguments: what a person can type instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlrun.config.loader import load
from rlrun.system.errors import RunError

ROOT = Path(__file__).resolve().parents[3]


def remedy(*overrides: str) -> str:
    with pytest.raises(RunError) as caught:
        load(list(overrides))
    return caught.value.remedy or ""


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("lr=3e-4", "Did you mean 'actor.lr' or 'sft.lr'?"),
        ("env.num_env=4", "Did you mean 'env.num_envs'?"),
        ("enviroment.num_envs=4", "Did you mean 'env.num_envs'?"),
        ("actor.lr=fast", "Write a number such as 3e-4."),
        ("env.num_envs=many", "Write a whole number such as 16."),
        ("logging.wandb=maybe", "Write true or false."),
        ("actor.sharding=ddp", "ddp is no_shard here: actor.sharding=no_shard."),
        (
            "algorithm.aggregation=seq_mean_token_mean",  # not what is spelled most alike, which is another mean
            "What earlier versions computed under this name is algorithm.aggregation=chunk_mean_token_mean; "
            "episode_mean_token_mean is verl's.",
        ),
        (
            "cluster.channel_security=token",
            "Leave it out: env and rollout workers authenticate by a token, and encrypt nothing; use a VPN "
            "where a network is not trusted.",
        ),
        (
            "env.controlled=[base]",
            "It belongs to the simulator: write env.embedded.controlled or env.omnigibson.controlled.",
        ),
        ("cluster.kind=lcal", "Did you mean local?"),
        ("env.embedded.cameras=zed_link", "Write env.embedded.cameras=[zed_link]."),
    ],
)
def test_an_argument_is_told_what_to_write(override: str, expected: str) -> None:
    assert remedy(override) == expected


def test_a_key_like_no_other_is_told_the_keys_of_its_section() -> None:
    told = remedy("+algorithm.foo=1")
    assert told.startswith("The keys of algorithm are name, horizon,") and "Did you mean" not in told


def test_a_missing_path_is_told_what_it_must_name_and_what_is_like_it(tmp_path: Path) -> None:
    (tmp_path / "policy_a").mkdir()
    (tmp_path / "of others").mkdir()
    told = remedy(f"policy.path={tmp_path}/policy_b")
    assert "a folder with config.json and weights" in told and "policy_a" in told and "others" not in told


def rlrun(command: str) -> subprocess.CompletedProcess[str]:
    line = f"set -o pipefail; '{sys.executable}' -m rlrun.{command}"
    return subprocess.run(["bash", "-c", line], check=False, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_faulty_configuration_is_printed_before_its_faults() -> None:
    done = rlrun("train policy.path=/nowhere --cfg job")
    assert yaml.safe_load(done.stdout)["policy"]["path"] == "/nowhere"
    assert done.returncode == 5 and "'/nowhere' does not exist" in done.stderr


def test_a_reader_that_has_enough_ends_the_output_quietly() -> None:
    done = rlrun("train --help | head -1")
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 1)


def test_a_plan_needs_no_policy() -> None:
    done = rlrun("plan run=cartpole policy.path=/nowhere")
    assert done.returncode == 0 and "actor/0" in done.stdout, done.stdout + done.stderr


@pytest.mark.long
def test_the_doctor_says_on_which_machine_it_is() -> None:
    machines = "+placement=dual_node inventory=configs/inventory_example.yaml"
    done = rlrun(f"doctor run=behavior_ppo_openvla_oft {machines} format=json")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "you are not on it" in done.stdout and "force-reinstall" not in done.stdout
