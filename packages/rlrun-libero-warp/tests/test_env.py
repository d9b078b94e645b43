"""LIBERO on MuJoCo Warp's CPU device equals MuJoCo: paths, successes, predicates; and what is a row's own.

The first start of these tests on a machine compiles Warp's kernels, about a minute and a half of CPU time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from warp_rows import config, made, made_in_mujoco, needs_warp, write_starts

from rlrun.envs.make import make_env
from rlrun.envs.vector_env import SimulatorFault
from rlrun.testing.simulators import NUM_ENVS, EnvUnderTest, broken_promises, contract_config
from tests.unit.envs.libero import small_suite

pytestmark = [pytest.mark.long, needs_warp, small_suite.needs_opengl, pytest.mark.timeout(900)]
SAME = 1e-5  # m and rad
STARTS = 64


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_suite.write(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def pair(scenes: Path) -> Iterator[tuple[Any, Any]]:
    """Three rows on Warp, and in MuJoCo."""
    both = made(scenes, 3), made_in_mujoco(scenes, 3)
    yield both
    for env in both:
        env.close()


def error(pair: tuple[Any, Any]) -> float:
    """Return the largest difference of positions, m and rad."""
    on_warp, in_mujoco = pair
    return max(np.abs(on_warp.state(i)[0] - in_mujoco.state(i)[0].qpos).max() for i in range(on_warp.num_envs))


def actions(num_rows: int, num_steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (num_rows, num_steps, 7)).astype(np.float32)


def reset(env: Any, *seeds: int) -> Any:
    return env.reset(np.arange(len(seeds)), np.array(seeds))


def test_paths_are_those_of_mujoco(pair: tuple[Any, Any]) -> None:
    frames = [reset(env, 0, 3, 4) for env in pair]
    assert frames[0].instructions == frames[1].instructions and error(pair) < SAME
    for k in range(3):
        chunks = [env.step_chunk(actions(3, 8, k)) for env in pair]
        assert error(pair) < SAME
        assert np.array_equal(chunks[0].rewards, chunks[1].rewards) and not chunks[0].infra_fault.any()
        assert np.abs(chunks[0].frames.proprio - chunks[1].frames.proprio).max() < SAME
    assert chunks[0].infos == chunks[1].infos


def test_pictures_show_the_same_as_opengl_s(pair: tuple[Any, Any]) -> None:
    frames = [reset(env, 0, 3, 4) for env in pair]
    warp, opengl = (one.images[:, 0].astype(float) for one in frames)
    assert np.abs(warp - opengl).mean() < 8  # highlights and soft edges are missing
    assert np.abs(warp[:, :, ::-1] - opengl).mean() > 1.5 * np.abs(warp - opengl).mean()
    overviews = [env.render(1, 40, 60) for env in pair]
    assert np.abs(overviews[0].astype(float) - overviews[1]).mean() < 1


@pytest.mark.parametrize(("light", "expected"), [("directional", 0.625), ("spot", 1.0)])
def test_a_sun_beside_the_headlight_does_not_overexpose(light: str, expected: float) -> None:
    from rlrun_libero_warp.pictures import dimming

    lamp = f'<light type="{light}" diffuse=".8 .8 .8"/>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{lamp}</worldbody></mujoco>")
    assert dimming(model) == pytest.approx(expected)  # ambient 0.1 and diffuse 0.4 of the headlight


def test_successes_of_64_starts_are_those_of_mujoco(tmp_path: Path) -> None:
    scenes = small_suite.write(tmp_path)
    model = mujoco.MjModel.from_xml_string(small_suite.scene().decode())
    starts = np.repeat(np.load(scenes / small_suite.NAME / "0" / "starts.npy")[:1], STARTS, 0)
    slide, generator = model.joint("drawer_slide"), np.random.default_rng(1)
    starts[:, 1 + slide.qposadr[0]] = generator.uniform(0.0, 0.1, STARTS)
    starts[:, 1 + model.nq + slide.dofadr[0]] = generator.uniform(0.0, 0.6, STARTS)  # opens itself, or does not
    write_starts(scenes, 0, starts)
    keys = ["task_ids=[0]", "settle_steps=1", f"train_starts='0:{STARTS}'"]
    both = made(scenes, STARTS, *keys, image_size=16), made_in_mujoco(scenes, STARTS, *keys, image_size=16)
    chunks = []
    for env in both:
        reset(env, *range(STARTS))
        chunks.append(env.step_chunk(actions(STARTS, 8)))
        env.close()
    assert 10 < chunks[1].success.sum() < STARTS - 10
    assert np.array_equal(chunks[0].success, chunks[1].success)
    assert np.array_equal(chunks[0].rewards, chunks[1].rewards)  # in the same control steps
    assert np.array_equal(chunks[0].step_valid, chunks[1].step_valid)


PREDICATES = [
    ["open", "drawer_region"],
    ["close", "drawer_region"],
    ["turnon", "knob"],
    ["turnoff", "knob"],
    ["in", "box", "drawer_region"],
    ["on", "box", "shelf_region"],
    ["on", "box", "shelf"],
]


def test_predicates_hold_where_those_of_mujoco_hold(scenes: Path) -> None:
    """Of states near their thresholds; each predicate holds in some and not in others."""
    import mujoco_warp
    import warp as wp
    from rlrun_libero_warp.goals import BatchGoals

    from rlrun.envs.libero.goals import Goal
    from rlrun.envs.libero.scenes import Suite

    suite = Suite(scenes, small_suite.NAME, False)
    model, things = suite.task(0).scene.model, suite.described(0)["things"]
    goals = [Goal(model, [literal], things) for literal in PREDICATES] + [Goal(model, PREDICATES[:3], things)]
    generator, num_states = np.random.default_rng(0), 40
    positions = np.tile(suite.task(0).starts[0, 1 : 1 + model.nq], (num_states, 1))
    at = {name: int(model.joint(name).qposadr[0]) for name in ("drawer_slide", "knob_turn", "box_joint")}
    positions[:, at["drawer_slide"]] = generator.choice([0.0005, 0.002, 0.0999, 0.1001], num_states)
    positions[:, at["knob_turn"]] = generator.choice([-0.001, 0.0, 0.4999, 0.5001], num_states)
    places = np.array(
        [[0.4, 0.0, 0.0799], [0.42, 0.0, 0.0801], [0.42, 0.01, 0.0799], [0.44, 0.0, 0.0799], [0.5, 0.3, 0.1]]
    )
    positions[:, at["box_joint"] : at["box_joint"] + 3] = generator.choice(places, num_states)
    data, expected = mujoco.MjData(model), np.zeros((len(goals), num_states), bool)
    for i, position in enumerate(positions):
        data.qpos[:] = position
        mujoco.mj_forward(model, data)
        expected[:, i] = [goal.holds(data) for goal in goals]
    with wp.ScopedDevice("cpu"):
        on_device, of_all = (
            mujoco_warp.put_model(model),
            mujoco_warp.make_data(model, num_states, nconmax=512, njmax=512),
        )
        of_all.qpos.assign(positions)
        mujoco_warp.forward(on_device, of_all)
        batch = BatchGoals(goals, num_states)
        for k in range(len(goals)):
            batch.tasks.fill_(k)
            batch.judge(of_all)
            assert np.array_equal(batch.success.numpy() > 0, expected[k]), [*PREDICATES, "three"][k]
    assert expected[:-1].any(1).all() and not expected[:-1].all(1).any()


def test_a_row_with_too_many_contacts_is_void_and_the_others_go_on(pair: tuple[Any, Any]) -> None:
    env = pair[0]
    reset(env, 0, 0, 0)
    expected = env.step_chunk(actions(3, 2))
    reset(env, 0, 0, 0)
    env._physics.data.overflow.assign(np.array([0, 1, 0], np.int32))  # more constraints than there is room for
    chunk = env.step_chunk(actions(3, 2))
    assert chunk.infra_fault.tolist() == [False, True, False] and "contacts" in chunk.infos[1]["fault"]
    assert np.array_equal(chunk.frames.proprio[[0, 2]], expected.frames.proprio[[0, 2]])
    reset(env, 0, 0, 0)
    assert not env.step_chunk(actions(3, 1)).infra_fault.any()


def test_a_start_that_diverges_is_no_start(tmp_path: Path) -> None:
    scenes = small_suite.write(tmp_path)
    starts = np.load(scenes / small_suite.NAME / "0" / "starts.npy")
    write_starts(scenes, 0, np.full_like(starts, 1e12))
    with pytest.raises(SimulatorFault, match="diverged while objects came to rest in row 0"):
        made(scenes, 3, "task_ids=[0]")


def test_the_order_of_resets_does_not_matter(scenes: Path, pair: tuple[Any, Any]) -> None:
    """The state of a start is computed once, in whichever row asks for it first."""
    first = reset(pair[0], 0, 2, 4)
    again = reset(pair[0], 4, 0, 2)
    other = made(scenes, 3)
    fresh = reset(other, 4, 0, 2)
    other.close()
    for name in ("images", "proprio"):
        assert np.array_equal(getattr(first, name), getattr(again, name)[[1, 2, 0]])
        assert np.array_equal(getattr(again, name), getattr(fresh, name))


def test_it_keeps_the_promises_of_a_simulator(scenes: Path) -> None:
    """The contract that rlrun's own simulators are tested with."""
    subject = contract_config(config(scenes, "validation_starts='0:1'", "test_starts='1:3'"))
    make = lambda: make_env(subject, NUM_ENVS)  # noqa: E731
    assert list(broken_promises(EnvUnderTest(subject, make, make()))) == []


def test_a_row_whose_physics_diverge_is_void_and_the_others_go_on(pair: tuple[Any, Any]) -> None:
    env = pair[0]
    reset(env, 0, 0, 0)
    expected = env.step_chunk(actions(3, 2))
    reset(env, 0, 0, 0)
    qvel = env._physics.data.qvel
    numbers = qvel.numpy().copy()
    numbers[1, 0] = np.inf
    qvel.assign(numbers)
    chunk = env.step_chunk(actions(3, 2))
    assert chunk.infra_fault.tolist() == [False, True, False] and "diverged" in chunk.infos[1]["fault"]
    assert np.array_equal(chunk.frames.proprio[[0, 2]], expected.frames.proprio[[0, 2]])
