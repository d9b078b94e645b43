"""rlrun beside CleanRL: what is read from CleanRL's logs, and what is computed from two runs of a side."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from benchmarks.peers import __main__ as peers
from benchmarks.peers import cleanrl
from benchmarks.peers.cleanrl import Episodes, Found

SAC, PPO = cleanrl.TASKS


def ended(*returns: float) -> Episodes:
    return [(200 * number, value) for number, value in enumerate(returns, start=1)]


@pytest.mark.parametrize(
    ("returns", "number"),
    [
        ((-900.0, -300.0, -500.0, -200.0, -100.0), 4),
        ((-300.0, -200.0), 1),
        ((-300.0, -400.0), None),
        ((), None),
    ],
)
def test_the_episode_from_which_returns_stay_above_a_number(returns: tuple[float, ...], number: int | None) -> None:
    assert cleanrl.settled(ended(*returns), -400.0) == number


def test_episodes_of_the_last_control_steps() -> None:
    assert cleanrl.mean_of_last_steps([(51_440, 1.0), (51_441, 10.0), (61_440, 20.0)], steps=61_440) == 15.0


def test_episodes_that_cleanrl_logged(tmp_path: Path) -> None:
    count = 12_000  # more than the reader of TensorBoard keeps unless it is told
    with SummaryWriter(str(tmp_path / "runs" / "CartPole-v1__ppo__1__2")) as writer:
        for step in range(count):
            writer.add_scalar("charts/episodic_return", float(step % 500), step)
    episodes = cleanrl.logged_episodes(tmp_path)
    assert len(episodes) == count
    assert episodes[-1] == (count - 1, float((count - 1) % 500))


def test_processor_time_is_that_of_the_command_and_its_children(tmp_path: Path) -> None:
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    idle = "import time; time.sleep(0.5)"
    assert cleanrl.cpu_seconds([sys.executable, "-c", parent], tmp_path, {}) >= 0.5
    assert cleanrl.cpu_seconds([sys.executable, "-S", "-c", idle], tmp_path, {}) < 0.5


def test_the_report_has_returns_and_the_ratio_of_medians() -> None:
    slow = [Found(ended(-900.0, *[-200.0] * 8), ms) for ms in (10.0, 20.0, 60.0)]
    fast = [Found(ended(-900.0, -300.0, *[-100.0] * 8), ms) for ms in (15.0, 5.0, 16.0)]
    assert cleanrl.lines(SAC, {"CleanRL": slow, "rlrun": fast}) == [
        "SAC, 6,016 control steps, seeds 1 to 3",
        "  CleanRL  returns stay above -400 from episode 2 2 2",
        "  CleanRL  mean return of the last 8 episodes -200 -200 -200",
        "  rlrun    returns stay above -400 from episode 2 2 2",
        "  rlrun    mean return of the last 8 episodes -100 -100 -100",
        "  CleanRL  CPU per control step 20.00 ms (10.00 20.00 60.00)",
        "  rlrun    CPU per control step 15.00 ms (15.00 5.00 16.00)",
        "  ratio of the medians 0.75",
    ]


def test_the_start_is_subtracted() -> None:
    assert cleanrl.ms_per_step({6_016: 58.0, 1_216: 10.0}) == pytest.approx(10.0)


@pytest.mark.parametrize("task", cleanrl.TASKS, ids=lambda task: task.name)
def test_both_lengths_are_whole_training_steps_and_learn(task: cleanrl.Task) -> None:
    assert task.steps % task.steps_of_training_step == 0
    assert task.short_steps % task.steps_of_training_step == 0


def test_a_folder_without_the_scripts_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["peers", "cleanrl", str(tmp_path)])
    with pytest.raises(SystemExit) as refused:
        peers.main()
    assert str(refused.value) == f"{tmp_path} is no checkout of CleanRL: it has no cleanrl/{SAC.script}."
