"""`rlrun certify` on true runs: honest ones get a card, and cheating is refused by the rule that it breaks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.certification.card import faults_of, read_card
from rlrun.certification.certifying import certify
from rlrun.config.loader import load
from rlrun.interface import load_config
from rlrun.system.errors import ExitStatus, RunError
from rlrun.train import train
from tests.integration.environments import environment_python

pytestmark = pytest.mark.integration

WORLD = """
import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = {size}

class Reach(gymnasium.Env):
    \"\"\"A point on a line; its start is drawn by the seed, or it has {starts} starts.\"\"\"
    observation_space = spaces.Box(-2, 2, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.x = {start}
        self.goal = 0.5 * SIZE
        return np.array([self.x, self.goal], np.float32), {{}}

    def step(self, action):
        self.x = float(np.clip(self.x + 0.1 * action[0], -2, 2))
        done = abs(self.x - self.goal) < 0.2
        return np.array([self.x, self.goal], np.float32), float(done), done, False, {{"is_success": done}}

gymnasium.register("Reach-v0", Reach)
"""
BY_SEED = "float(self.np_random.uniform(-1, 1))"
FOUR_STARTS = "(-0.9, -0.4, 0.1, 0.3)[int(self.np_random.integers(4))]"
ARGUMENTS = ["run=cartpole", "cluster.kind=local", "num_steps=2", "env.num_envs=4", "algorithm.horizon=16"]
ARGUMENTS += ["algorithm.global_batch_size=64", "actor.micro_batch_size=64", "env.max_control_steps=20"]
ARGUMENTS += ["evaluation.num_episodes=4", "env.num_workers=1", "rollout.num_workers=1", "logging.video_episodes=0"]
ARGUMENTS += ["logging.tensorboard=false", "watchdog.enabled=false"]


def write_world(folder: Path, name: str, start: str = BY_SEED, size: float = 1.0) -> None:
    starts = "four" if start == FOUR_STARTS else "many"
    (folder / f"{name}.py").write_text(WORLD.format(start=start, size=size, starts=starts))


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Call with the name of a world and arguments; returns the folder of a short run in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(name: str, *arguments: str) -> Path:
        folder = tmp_path / "runs" / name
        own = [f"env.gymnasium.id={name}:Reach-v0", f"output_dir={folder}", *arguments]
        assert train(load([*ARGUMENTS, *own])) is ExitStatus.ok
        return folder

    return run


def certified(run: Path, *arguments: str, number: int = 12) -> Path:
    changes = [f"output_dir={run.parent / 'card'}", f"certify.num_episodes={number}", "cluster.kind=local", *arguments]
    return certify(load_config(run, changes=[f"evaluation.checkpoint={run}", *changes]))


def refused(rule: str, run: Path, *arguments: str) -> str:
    """Return the cause of the refusal by `rule`."""
    with pytest.raises(RunError, match=f"the rule '{rule}' is broken") as refusal:
        certified(run, *arguments)
    return str(refusal.value.cause)


def test_an_honest_run_gets_a_card_that_holds(trained, tmp_path):
    write_world(tmp_path, "honest_world")
    run = trained("honest_world")
    card = read_card(certified(run))
    assert faults_of(card) == [] and card["waived"] == []
    assert card["training"]["steps"] == 2 and card["training"]["num_starts"] >= 4 + 2 * 4
    assert card["selection"]["num_evaluations"] == 2
    assert card["result"]["num_starts"] == 12
    again = read_card(certified(run, number=12))
    assert [one["success"] for one in again["episodes"]] == [one["success"] for one in card["episodes"]]
    warmer = read_card(certified(run, "evaluation.temperature=1"))
    assert warmer["selection"]["cards_before"] == 2  # who looks at test starts leaves a trace
    assert [one["temperature"] for one in warmer["selection"]["earlier"]] == ["0", "0"]
    assert faults_of(warmer) == []


@pytest.mark.long
def test_a_run_whose_episodes_last_longer_than_a_step_gets_a_card(trained, tmp_path):
    """No episode begins in its second step."""
    write_world(tmp_path, "carried_world", start="5.0")
    run = trained("carried_world", "algorithm.carry_episodes=true", "env.max_control_steps=40")
    card = read_card(certified(run, "certify.waive=[held_out]", "env.max_control_steps=40"))
    assert "record" not in {one["rule"] for one in card["waived"]}


def test_a_world_with_few_starts_cannot_hold_any_out(trained, tmp_path):
    """Its seeds are disjoint; its first observations tell that training began from the same four starts."""
    write_world(tmp_path, "few_starts", FOUR_STARTS)
    run = trained("few_starts")
    assert "12 of 12 test starts were seen before" in refused("held_out", run)
    card = read_card(certified(run, "certify.waive=[held_out]"))
    assert [one["rule"] for one in card["waived"]] == ["held_out"]


def test_a_run_that_resets_to_test_seeds_is_refused(trained, tmp_path, monkeypatch):
    write_world(tmp_path, "cheating_world")
    from rlrun.edges import reports
    from rlrun.edges.starts import TEST_SEEDS
    from rlrun.workers import collector

    for module in (collector, reports):  # env worker and driver, which computes the seeds as well
        monkeypatch.setattr(module, "episode_seeds", lambda *args: TEST_SEEDS.start + args[4] + 0 * args[3])
    run = trained("cheating_world")
    assert "episodes began from test starts (training, step 1" in refused("held_out", run)


def test_a_checkpoint_chosen_on_test_starts_is_refused(trained, tmp_path):
    write_world(tmp_path, "chosen_world")
    run = trained("chosen_world", "checkpoint.best_on=test")
    assert "began from test starts" in refused("selection", run)


def test_a_card_is_not_written_among_the_records_of_the_run(trained, tmp_path):
    write_world(tmp_path, "own_world")
    run = trained("own_world")
    with pytest.raises(RunError, match="A run trained in this folder") as refusal:
        certified(run, f"output_dir={run}")
    assert refusal.value.key == "output_dir"


def test_another_world_is_refused(trained, tmp_path, monkeypatch):
    """The world's file has changed since the training: another asset."""
    write_world(tmp_path, "changed_world")
    run = trained("changed_world")
    write_world(tmp_path, "changed_world", size=1.1)
    assert "sources was" in refused("same_world", run)
    assert "env.max_control_steps was 20, is 30" in refused("same_world", run, "env.max_control_steps=30")


@pytest.mark.long
def test_a_sequential_rule_ends_when_the_interval_is_narrow(trained, tmp_path):
    write_world(tmp_path, "sequential_world")
    run = trained("sequential_world")
    card = read_card(certified(run, "certify.half_width=0.15", number=400))
    assert card["result"]["episodes"] in (50, 100)
    assert (card["result"]["high"] - card["result"]["low"]) / 2 <= 0.15
    assert faults_of(card) == []


@pytest.mark.long
def test_cards_of_the_command_line_and_their_verification(tmp_path):
    """The embedded world and its perturbed ones, as a person runs it."""

    def rlrun(program: str, *arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", f"rlrun.{program}", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)

    done = rlrun("train", "run=debug", "policy.kind=cnn", "cluster.kind=local", "output_dir=run", "num_steps=1")
    assert done.returncode == 0, done.stderr
    perturb = "certify.perturb=[wording,delay_1]"
    done = rlrun("certify", "run", "cluster.kind=local", "certify.num_episodes=3", perturb, "output_dir=card")
    assert done.returncode == 0, done.stderr
    assert "on held-out test starts" in done.stdout
    card = read_card(tmp_path / "card" / "card.json")
    assert [row["perturbation"] for row in card["perturbed"]] == ["wording", "delay_1"]
    assert rlrun("certify", "card/card.json").returncode == 0
    file = tmp_path / "card" / "card.json"
    file.write_text(file.read_text().replace('"steps": 1,', '"steps": 100,'))
    done = rlrun("certify", "card/card.json")
    assert done.returncode == ExitStatus.bad_input and "it was edited" in done.stderr


@pytest.mark.long
def test_robostats_and_verdikt_read_the_episodes(trained, tmp_path):
    python = environment_python("evaluation_tools", ("robostats==0.2.0", "verdikt-eval==0.3.1"), 4e8)
    write_world(tmp_path, "exported_world")
    card = certified(trained("exported_world"))
    expected = read_card(card)["result"]
    program = Path(__file__).with_name("read_episodes.py")
    done = subprocess.run(
        [python, str(program), str(card.with_name("episodes.jsonl"))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert read == {name: [expected["successes"], expected["episodes"]] for name in ("robostats", "verdikt")}


@pytest.mark.long
def test_the_noise_of_retraining_leaves_out_seeds_that_have_not_come_as_far(trained, tmp_path):
    """A seed beside the run that still trains has evaluations of earlier steps only."""
    write_world(tmp_path, "noisy_world")
    run = trained("noisy_world")
    beside = run.parent / "seed_1"
    trained("noisy_world", "seed=1", f"output_dir={beside}")
    assert read_card(certified(run))["noise"]["num_seeds"] == 2
    first_evaluation = (beside / "evaluations.jsonl").read_text().splitlines()[0]
    (beside / "evaluations.jsonl").write_text(first_evaluation + "\n")
    assert read_card(certified(run))["noise"] is None
