"""A policy gets the cameras that it was made with, by their names, whatever the order of the world's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.config.loader import load
from rlrun.controller.controller import Controller
from rlrun.placement.plan import ROLES
from rlrun.placement.planner import plan
from rlrun.placement.this_machine import known_inventory
from rlrun.placement.workload import Workload
from rlrun.system.errors import RunError
from tests.workers import start_workers

RUN = [
    *(
        "run=cartpole",
        "policy.kind=cnn",
        "cluster.kind=local",
        "env.image_size=16",
        "env.num_envs=2",
        "env.num_workers=1",
    ),
    *("rollout.num_workers=1", "env.gymnasium.id=tests.unit.controller.two_cameras:TwoCameras-v0"),
    *(
        "env.max_control_steps=4",
        "evaluation.temperature=0",
        "evaluation.num_episodes=2",
        "algorithm.global_batch_size=64",
        "actor.micro_batch_size=64",
        "algorithm.horizon=32",
    ),
]
SEEDS = [5, 6]


def returns(folder: Path, *overrides: str, is_new: bool = False) -> tuple[list[float], list[str]]:
    """Returns of two episodes, and what a person was told; is_new: of a new policy, written to `folder`/policy."""
    config = load([*RUN, *overrides])
    workers = start_workers(config, plan(Workload(config), known_inventory(config)), ROLES, folder)
    told: list[str] = []
    try:
        controller = Controller(config, workers, told.append)
        controller.load_simulators()
        if is_new:
            controller.form_mesh()
            controller.begin_policy(str(folder / "policy"))
        controller.load_rollout(str(folder / "policy"), is_final=True)
        return [report.episode_return for report in controller.evaluate(SEEDS, 0)[0].episodes], told
    finally:
        workers.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    folder = tmp_path_factory.mktemp("made")
    return folder, returns(folder, is_new=True)[0]


def test_another_order_of_the_worlds_cameras_changes_nothing(made):
    folder, before = made
    swapped, told = returns(folder, "env.gymnasium.image_keys=[pixels.top,pixels.side]")
    assert swapped == before
    assert "cameras: pixels.side → pixels.side, pixels.top → pixels.top" in told


def test_policy_cameras_says_which_is_which(made):
    folder, before = made
    other, told = returns(folder, "policy.cameras={pixels.side: pixels.top, pixels.top: pixels.side}")
    assert other != before  # else the pictures would not matter, and the test above would show nothing
    assert "cameras: pixels.top → pixels.side, pixels.side → pixels.top" in told


def test_a_world_without_the_policys_cameras_is_refused(made):
    folder, _ = made
    with pytest.raises(
        RunError, match=r"looks through pixels.side, pixels.top; the simulator shows pixels.top"
    ) as found:
        returns(folder, "env.gymnasium.image_keys=[pixels.top]")
    assert found.value.key == "policy.cameras" and "pixels.side has no partner" in str(found.value.cause)


def test_a_second_start_and_a_replacement_show_what_the_policy_takes(made):
    """The simulators are loaded again after the loss of an actor; the first order must not be taken for the world's."""
    folder, before = made
    config = load([*RUN, "env.gymnasium.image_keys=[pixels.top,pixels.side]"])
    workers = start_workers(config, plan(Workload(config), known_inventory(config)), ROLES, folder)
    try:
        controller = Controller(config, workers)
        for _ in range(2):
            assert controller.load_simulators().cameras == ("pixels.top", "pixels.side")
            controller.load_rollout(str(folder / "policy"), is_final=True)
        assert controller.shown == (1, 0)
        loaded = controller.envs.submit(0, lambda env: env.load((1, 0)))
        assert controller.envs.wait([loaded], "a replaced worker loads", 60.0) == [controller.world]
        reports = controller.evaluate(SEEDS, 0)[0].episodes
        assert [report.episode_return for report in reports] == before
    finally:
        workers.close()
