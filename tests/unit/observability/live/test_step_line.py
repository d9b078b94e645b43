"""Formats of numbers for people."""

import pytest

from rlrun.observability.step_line import duration, memory, percent, quantity, step_line, time_shares


def test_the_line_of_a_step() -> None:
    metrics = {
        "success_rate": 0.5625, "episode_return": 1.314, "approx_kl": 0.0123, "env_steps_per_second": 410.4,
        "step_s": 3.1, "num_infra_faults": 2.0, "busy_env": 0.71, "busy_actor": 0.2,
        "num_simulator_restarts": 1.0, "num_worker_restarts": 2.0,
    }  # fmt: skip
    assert step_line(7, 100, metrics) == (
        "step   7/100 · success  56 % · return 1.31 · kl 0.0123 · 410 env steps/s · 3.1 s · 2 infra faults"
        " · 1 simulator restarted · 2 workers restarted · busy env 71 actor 20 %"
    )


def test_missing_and_non_finite_numbers_do_not_break_it() -> None:
    assert step_line(1, 9, {}) == "step 1/9"
    assert "success   - %" in step_line(1, 9, {"success_rate": float("nan"), "step_s": float("nan")})


def test_stages_stand_in_for_roles() -> None:
    stages = {"step_s": 4.0, "collect_s": 3.0, "update_s": 0.8, "sync_s": 0.1}
    assert time_shares(stages) == pytest.approx({"collect": 0.75, "update": 0.2, "sync": 0.025})
    assert time_shares({"collect_s": 3.0}) == {}


def test_units() -> None:
    assert [duration(s) for s in (8.25, 75, 3700, float("inf"))] == ["8.2 s", "1:15", "1:01:40", "n/a"]
    assert [quantity(n) for n in (950, 2.5, 12_345, 4_200_000, 3e9)] == ["950", "2.5", "12.3k", "4.2M", "3.0G"]
    assert [memory(n) for n in (182_000_000, 3 * 1024**3)] == ["174 MiB", "3.0 GiB"]
    assert percent(0.563) == "56 %"


def test_saving_stands_beside_the_time_of_the_step() -> None:
    line = step_line(3, 10, {"step_s": 1.4, "evaluate_s": 0.0, "save_s": 15.2})
    assert line == "step  3/10 · 1.4 s + save 15.2 s"
    assert step_line(3, 10, {"step_s": 1.4, "evaluate_s": 75.0, "save_s": 0.01}).endswith("1.4 s + evaluate 1:15")


def test_a_step_of_void_episodes_shows_no_success_rate() -> None:
    assert "success   - % · " in step_line(3, 10, {"step_s": 1.0, "num_infra_faults": 4.0})
    assert "success" not in step_line(3, 10, {"step_s": 1.0})
