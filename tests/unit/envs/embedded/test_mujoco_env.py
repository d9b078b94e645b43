"""The embedded world: controllers, goals, rewards, grasping, proprioception, refused configurations."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import mujoco
import numpy as np
import pytest

from benchmarks.expert import expert_episodes
from rlrun.config.schema import EnvConfig, Renderer
from rlrun.envs import r1pro
from rlrun.envs.embedded import renderer, room
from rlrun.envs.embedded.activities import BIN_AT, CANS, TABLE_HEIGHT
from rlrun.envs.embedded.goals import Goal
from rlrun.envs.embedded.renderer import OpenGLRenderer, open_renderer
from rlrun.envs.embedded.spec import EmbeddedConfig
from rlrun.envs.make import make_env
from rlrun.envs.r1pro_keys import ProprioLayout, RewardMode
from rlrun.envs.vector_env import SimulatorFault
from tests.unit.envs.conftest import WHOLE_BODY

ONE = np.array([0])


def hold(env) -> np.ndarray:
    """float32 [1, 1, A]: the action under which the robot stands still."""
    row = env._rows[0]
    action = np.zeros(env.spaces.num_actions, np.float32)
    for part in env._controllers.driven:
        if part.startswith(("trunk", "arm")):
            action[env._controllers.where(part)] = [row.data.joint(name).qpos[0] for name in r1pro.joints_of(part)]
    return action[None, None]


def test_base_moves_in_its_own_frame(make) -> None:
    env = make(
        EnvConfig(
            max_control_steps=1000,
            sections={"embedded": EmbeddedConfig(controlled=WHOLE_BODY, proprio=ProprioLayout.full_256)},
        )
    )
    env.reset(ONE, ONE)
    row, action = env._rows[0], hold(env)
    action[0, 0, 2] = 1.0  # turn left at 1 rad/s for 1 s
    env.step_chunk(np.repeat(action, 30, axis=1))
    yaw = row.data.joint("base_footprint_rz_joint").qpos[0]
    assert yaw == pytest.approx(1.0, abs=0.1)
    before, action = row.data.body("base_link").xpos[:2].copy(), hold(env)
    action[0, 0, 0] = 1.0  # forward at 0.75 m/s for 1 s
    frames = env.step_chunk(np.repeat(action, 30, axis=1)).frames
    heading = row.data.joint("base_footprint_rz_joint").qpos[0]
    moved = row.data.body("base_link").xpos[:2] - before
    np.testing.assert_allclose(moved, 0.75 * np.array([np.cos(heading), np.sin(heading)]), atol=0.1)
    base_qvel = frames.proprio[0, r1pro.PROPRIO_256["base_qvel"]]
    np.testing.assert_allclose(base_qvel, [0.75, 0, 0], atol=0.1)
    assert frames.proprio[0, r1pro.PROPRIO_256["robot_2d_ori"]][0] == pytest.approx(heading, abs=0.02)


def test_arm_reaches_absolute_targets_and_gripper_opens(make) -> None:
    env = make(EnvConfig(max_control_steps=1000))
    env.reset(ONE, ONE)
    target = hold(env)
    target[0, 0, :7] += np.array([-0.3, -0.2, 0.2, 0.2, -0.2, 0.2, -0.2], np.float32)
    target[0, 0, 7] = 1.0
    frames = env.step_chunk(np.repeat(target, 60, axis=1)).frames
    layout = r1pro.PROPRIO_61
    np.testing.assert_allclose(frames.proprio[0, layout["arm_right_qpos"]], target[0, 0, :7], atol=0.02)
    np.testing.assert_allclose(frames.proprio[0, layout["gripper_right_qpos"]], 0.05, atol=0.003)
    np.testing.assert_allclose(frames.proprio[0, layout["arm_right_qvel"]], 0.0, atol=0.02)


def test_undriven_parts_hold_their_pose(make) -> None:
    env = make(EnvConfig(sections={"embedded": EmbeddedConfig(proprio=ProprioLayout.full_256)}))
    before = env.reset(ONE, ONE).proprio[0]
    after = env.step_chunk(np.repeat(hold(env) + 0.2, 8, axis=1)).frames.proprio[0]
    layout = r1pro.PROPRIO_256
    for name in ("trunk_qpos", "arm_left_qpos", "base_qpos", "eef_left_pos", "eef_left_quat"):
        np.testing.assert_array_equal(before[layout[name]], after[layout[name]])
    assert not np.array_equal(before[layout["arm_right_qpos"]], after[layout["arm_right_qpos"]])


def test_both_layouts_tell_the_same(make) -> None:
    vectors = {}
    for kind, layout in ((ProprioLayout.full_256, r1pro.PROPRIO_256), (ProprioLayout.local_61, r1pro.PROPRIO_61)):
        env = make(EnvConfig(sections={"embedded": EmbeddedConfig(controlled=WHOLE_BODY, proprio=kind)}))
        env.reset(ONE, ONE)
        proprio = env.step_chunk(np.repeat(hold(env) * 0.9, 4, axis=1)).frames.proprio[0]
        vectors[kind] = {name: proprio[where] for name, where in layout.items()}
    full, local = vectors[ProprioLayout.full_256], vectors[ProprioLayout.local_61]
    for name, values in local.items():
        np.testing.assert_array_equal(values, full[name])
    np.testing.assert_allclose(full["joint_qpos_sin"], np.sin(full["joint_qpos"]), atol=1e-6)
    np.testing.assert_array_equal(full["joint_qpos"][11:24:2], full["arm_right_qpos"])
    assert np.linalg.norm(full["eef_right_quat"]) == pytest.approx(1.0, abs=1e-5)


def test_button_needs_its_travel_and_latches(make) -> None:
    env = make(EnvConfig(sections={"embedded": EmbeddedConfig(reward=RewardMode.potential)}))
    env.reset(ONE, ONE)
    row = env._rows[0]
    button = row.data.joint("radio_button")
    button.qfrc_applied[0] = 400 * room.BUTTON_ON * 0.7  # N against its spring
    assert not env.step_chunk(np.repeat(hold(env), 10, axis=1)).terminated[0]
    assert button.qpos[0] > room.BUTTON_ON * 0.6
    button.qfrc_applied[0] = 400 * room.BUTTON_ON * 1.5
    result = env.step_chunk(np.repeat(hold(env), 4, axis=1))
    assert result.terminated[0] and result.success[0] and not result.truncated[0] and result.q_score[0] == 1.0
    assert result.step_valid.sum() == 1 and result.rewards[0, 0] == pytest.approx(1.0)
    assert result.infos[0]["done"]["termination_conditions"]["predicate"] == {"done": True, "success": True}
    env.reset(ONE, ONE)
    assert not env._rows[0].toggled_on


def test_a_press_beside_the_button_does_nothing(make) -> None:
    """The radio is pressed 4 cm off the button: success needs about 2 cm."""
    env = make(EnvConfig(max_control_steps=60, sections={"embedded": EmbeddedConfig(reset_spread=0.0)}))
    aside = np.array([0.04, 0.0, 0.0])
    env.reset(ONE, ONE)
    env.expert_action(ONE)
    button = env.activity.button
    env.activity.button = lambda row: button(row) + aside
    result = None
    for _ in range(60):
        result = env.step_chunk(env.expert_action(ONE)[:, None])
    assert result.truncated[0] and not result.success[0]
    assert np.linalg.norm((env.activity.fingertip(env._rows[0]) - button(env._rows[0]) - aside)[:2]) < 0.02


def test_shaping_cannot_be_farmed(make) -> None:
    """Whatever happens in an episode, its shaped return is the difference of a bounded potential."""
    env = make(EnvConfig(max_control_steps=40))
    env.reset(ONE, ONE)
    row = env._rows[0]
    start = row.shaping
    random, total = np.random.default_rng(0), 0.0
    for _ in range(10):
        swing = hold(env) + random.normal(0, 0.3, (1, 4, env.spaces.num_actions)).astype(np.float32)
        total += env.step_chunk(swing).rewards.sum()
        assert 0.0 <= row.shaping <= 1.0
    assert total == pytest.approx(EmbeddedConfig().reward_shaping * (row.shaping - start), abs=1e-5)


def test_goal_of_three_cans(make) -> None:
    env = make(EnvConfig(sections={"embedded": EmbeddedConfig(activity="picking_up_trash")}))
    env.reset(ONE, ONE)
    row, scores = env._rows[0], []
    for i, can in enumerate(CANS):
        row.data.joint(can).qpos[:3] = (*BIN_AT, 0.15 + 0.1 * i)
        row.data.joint(can).qvel[:] = 0
        result = env.step_chunk(hold(env))
        scores.append((round(float(result.q_score[0]), 3), bool(result.success[0])))
    assert scores == [(0.333, False), (0.667, False), (1.0, True)]


def test_taking_a_can_out_costs_what_it_earned(make) -> None:
    env = make(
        EnvConfig(sections={"embedded": EmbeddedConfig(activity="picking_up_trash", reward=RewardMode.potential)})
    )
    env.reset(ONE, ONE)
    can = env._rows[0].data.joint("can_1")
    start, rewards = can.qpos.copy(), []
    for position in ((*BIN_AT, 0.15), start[:3]):
        can.qpos[:3], can.qvel[:] = position, 0
        rewards.append(float(env.step_chunk(hold(env)).rewards[0, 0]))
    assert rewards == pytest.approx([1 / 3, -1 / 3], abs=1e-6)


def test_grasp_needs_both_fingers_and_opens(make) -> None:
    env = make(EnvConfig(max_control_steps=240, sections={"embedded": EmbeddedConfig(activity="picking_up_trash")}))
    env.reset(ONE, ONE)
    row = env._rows[0]
    closing = hold(env)
    closing[0, 0, -1] = -1.0
    env.step_chunk(np.repeat(closing, 10, axis=1))
    assert not row.held, "closed fingers that touch nothing hold nothing"
    for _ in range(60):
        action = env.expert_action(ONE)[:, None]
        env.step_chunk(action)
        if row.held and row.data.joint(row.held["right"]).qpos[2] > TABLE_HEIGHT + 0.12:
            break
    assert list(row.held) == ["right"]
    can = row.data.joint(row.held["right"])
    opening = hold(env)
    opening[0, 0, -1] = 1.0
    env.step_chunk(np.repeat(opening, 12, axis=1))
    assert not row.held and not row.grasp_anchors and can.qpos[2] < TABLE_HEIGHT + 0.1


def test_rows_that_hold_do_not_disturb_each_other(make) -> None:
    """Weld anchors live in the shared model: a row must behave as if it were alone."""
    config = EnvConfig(max_control_steps=240, sections={"embedded": EmbeddedConfig(activity="picking_up_trash")})
    together, alone = make(config, 2), make(config, 1)
    together.reset(np.arange(2), np.array([3, 4]))
    alone.reset(ONE, np.array([4]))
    grasps: set[int] = set()
    for _ in range(50):
        result = together.step_chunk(together.expert_action(np.arange(2))[:, None])
        expected = alone.step_chunk(alone.expert_action(ONE)[:, None])
        assert np.array_equal(result.frames.proprio[1], expected.frames.proprio[0])
        grasps |= {i for i in range(2) if together._rows[i].held}
    assert grasps == {0, 1}


@pytest.mark.parametrize(
    ("activity", "limit", "share"),
    [("turning_on_radio", 60, 0.9), pytest.param("picking_up_trash", 240, 0.75, marks=pytest.mark.long)],
)
def test_expert_succeeds(make, activity: str, limit: int, share: float) -> None:
    env = make(EnvConfig(max_control_steps=limit, sections={"embedded": EmbeddedConfig(activity=activity)}), 4)
    success, _ = expert_episodes(env, 12 if limit == 60 else 4, first_seed=500, noise=0.0)
    assert success.mean() >= share


def test_cans_on_the_floor(make) -> None:
    env = make(EnvConfig(sections={"embedded": EmbeddedConfig(activity="picking_up_trash", cans_on_floor=True)}))
    env.reset(ONE, ONE)
    assert env._rows[0].data.joint("can_1").qpos[2] == pytest.approx(room.CAN_HALF_HEIGHT)
    with pytest.raises(NotImplementedError, match="cans_on_floor"):
        env.expert_action(ONE)


def with_settings(setting: dict) -> EnvConfig:
    if "image_size" in setting:
        return EnvConfig(**setting)
    return EnvConfig(sections={"embedded": EmbeddedConfig(**setting)})


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"activity": "washing_dishes"}, ["env.embedded.activity", "washing_dishes", "turning_on_radio"]),
        ({"controlled": ["arm_rihgt"]}, ["env.embedded.controlled", "arm_rihgt", "arm_right"]),
        ({"controlled": []}, ["env.embedded.controlled"]),
        ({"cameras": ["head"]}, ["env.embedded.cameras", "head", "zed_link"]),
        ({"image_size": 720}, ["env.image_size", "640"]),
        ({"physics_hz": 100}, ["env.embedded.physics_hz", "env.action_hz"]),
    ],
)
def test_refused_configurations(setting: dict, words: list[str]) -> None:
    with pytest.raises(ValueError) as refusal:
        make_env(with_settings(setting), 1)
    assert all(word in str(refusal.value) for word in words)


def test_expert_needs_its_arm(make) -> None:
    env = make(EnvConfig(sections={"embedded": EmbeddedConfig(controlled=["arm_left", "gripper_left"])}))
    env.reset(ONE, ONE)
    with pytest.raises(NotImplementedError, match="arm_right"):
        env.expert_action(ONE)


def test_goal_names_missing_objects() -> None:
    with pytest.raises(ValueError, match="radio_receiver"):
        Goal("turning_on_radio", {"table.n.02_1": "table"}, {"toggled_on": lambda row, name: True})


def test_ray_casting_sees_what_opengl_sees(make) -> None:
    images = []
    for kind in (Renderer.auto, Renderer.raycast):
        env = make(EnvConfig(renderer=kind))
        images.append(env.reset(ONE, ONE).images[0, 0].astype(float))
        env.close()
    drawn, cast = ((image[..., 0] > 1.7 * image[..., 1:].max(-1)) for image in images)  # red: the radio
    assert drawn.sum() > 40
    assert (drawn & cast).sum() > 0.8 * (drawn | cast).sum()


def test_an_unsound_renderer_is_refused(make, monkeypatch) -> None:
    model = make(EnvConfig(renderer=Renderer.raycast)).model
    random = np.random.default_rng(0)
    faults = {
        "constant image": lambda self, data, camera, h, w: np.full((h, w, 3), 7, np.uint8),
        "uninitialised memory": lambda self, data, camera, h, w: random.integers(0, 255, (h, w, 3), np.uint8),
    }
    for words, draw in faults.items():
        monkeypatch.setattr(OpenGLRenderer, "__init__", lambda self, model, kind: None)
        monkeypatch.setattr(OpenGLRenderer, "draw", draw)
        monkeypatch.setattr(OpenGLRenderer, "close", lambda self: None)
        with pytest.raises(RuntimeError, match=words):
            open_renderer(model, Renderer.egl)
        assert open_renderer(model, Renderer.auto).kind is Renderer.raycast


@pytest.mark.parametrize(
    "error",
    [
        ctypes.ArgumentError("argument 1: AttributeError: 'NoneType' object has no attribute 'glGetError'"),
        ImportError("Cannot initialize a EGL device display."),
        AttributeError("'NoneType' object has no attribute 'eglQueryString'"),
        OSError("libEGL.so.1: cannot open shared object file"),
        RuntimeError("MUJOCO_EGL_DEVICE_ID must be an integer between 0 and 0"),
        mujoco.FatalError("OpenGL version 1.5 or higher required"),
        TypeError("whatever a driver makes of it"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_opengl_raises_is_drawn_without_it(make, monkeypatch, error) -> None:
    model = make(EnvConfig(renderer=Renderer.raycast)).model

    def raises(model: object, kind: object) -> None:
        raise error

    monkeypatch.setattr(renderer, "_process_context", raises)
    assert open_renderer(model, Renderer.auto).kind is Renderer.raycast
    with pytest.raises(RuntimeError, match="libopengl0"):
        open_renderer(model, Renderer.egl)


# Debian's libegl1 alone: PyOpenGL finds EGL, and none of the libraries with the calls to draw.
WITHOUT_LIBOPENGL = """
import logging
from OpenGL.platform import ctypesloader
load = ctypesloader.loadLibrary

def load_what_is_there(dll, name, **more):
    if name in ("OpenGL", "GL", "GLESv2", "GLESv1_CM"):
        raise OSError(f"{name}: cannot open shared object file")
    return load(dll, name, **more)

ctypesloader.loadLibrary = load_what_is_there
logging.basicConfig(format="%(message)s")
from rlrun.doctor.simulator_trials import render_world
print(render_world("auto", 64))
"""


def test_without_libopengl_rays_are_cast_and_the_package_is_named() -> None:
    pytest.importorskip("OpenGL")
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        pytest.skip("EGL is not installed")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBOPENGL],
        env={key: value for key, value in os.environ.items() if key != "MUJOCO_GL"} | {"PYOPENGL_PLATFORM": "egl"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "ArgumentError" in done.stdout and "libopengl0" in done.stdout, done.stdout + done.stderr
    assert "'error': ''" in done.stdout and "'egl'" not in done.stdout


def test_a_black_frame_is_a_simulator_fault(make) -> None:
    env = make(EnvConfig(renderer=Renderer.raycast))
    env.reset(ONE, ONE)
    env._renderer._colour[:] = 0.0
    with pytest.raises(SimulatorFault):
        env.step_chunk(hold(env))


DRAWN_BESIDE = """
import gymnasium
import numpy as np
from rlrun.config.schema import EnvConfig, Renderer
from rlrun.envs.embedded.mujoco_env import MujocoVectorEnv

def picture(env):
    return env.reset(np.array([0]), np.array([1])).images

env = MujocoVectorEnv(EnvConfig(renderer=Renderer.egl), 1)
before = picture(env)
other = gymnasium.make("Swimmer-v5", render_mode="rgb_array")
other.reset()
other.render()
np.testing.assert_array_equal(picture(env), before)
other.render()
np.testing.assert_array_equal(picture(MujocoVectorEnv(EnvConfig(renderer=Renderer.egl), 1)), before)
"""


def test_pictures_are_the_same_after_another_library_has_drawn_in_this_process() -> None:
    """In a process of its own: when that library frees its context, it may take ours along."""
    subprocess.run([sys.executable, "-c", DRAWN_BESIDE], env=os.environ | {"MUJOCO_GL": "egl"}, timeout=120, check=True)
