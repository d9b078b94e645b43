"""The expert that reads goals solves tasks of libero_goal that share one scene, so that their sentences decide."""

from __future__ import annotations

import numpy as np
import pytest

from rlrun.config.loader import compose_only
from rlrun.envs.libero.libero_env import LiberoVectorEnv, make_libero
from tests.integration.libero import libero_scenes

pytestmark = [pytest.mark.integration, pytest.mark.long]

TASKS = {1: "put the bowl on the stove", 7: "turn on the stove", 8: "put the bowl on the plate"}
NUM_ROWS = 3
MOST_STEPS = 150


def world(task: int) -> LiberoVectorEnv:
    scenes = libero_scenes("libero_goal", task)
    keys = [f"env.libero.task_ids=[{task}]", f"env.libero.scenes={scenes}", "env.libero.suite=libero_goal"]
    sizes = ["env.libero.cameras=[agentview]", "env.image_size=16", f"env.num_envs={NUM_ROWS}", "env.num_workers=1"]
    expert = ["env.libero.expert=rlrun.envs.libero.placing:solve", "env.libero.pictures=fast"]
    env = make_libero(compose_only(["env=libero", "policy.kind=cnn", *keys, *sizes, *expert]).env, NUM_ROWS)
    assert isinstance(env, LiberoVectorEnv)
    return env


@pytest.mark.parametrize("task", TASKS)
def test_it_solves_the_task_that_the_sentence_names(task: int) -> None:
    env = world(task)
    assert env.spaces.instructions == (TASKS[task],)
    rows = np.arange(NUM_ROWS)
    env.begin(rows, rows)
    is_solved = np.zeros(NUM_ROWS, bool)
    for _ in range(MOST_STEPS):
        env.control_step(rows, env.native(env.expert_action(rows)))
        is_solved |= [env.state(row)[2] for row in rows.tolist()]
        if is_solved.all():
            break
    assert is_solved.all()
    env.close()
