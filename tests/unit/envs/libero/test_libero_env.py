"""The world on plain MuJoCo, with a small suite in place of LIBERO's; tests/integration compares with LIBERO itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import mujoco
import numpy as np
import pytest

from rlrun.config.loader import load
from rlrun.envs.libero import export
from rlrun.envs.libero.libero_env import LiberoVectorEnv, make_libero
from rlrun.envs.libero.scenes import Suite
from rlrun.envs.libero.tasks import axis_angle, check_renderer
from rlrun.envs.make import make_env
from rlrun.envs.vector_env import SimulatorFault
from rlrun.system.errors import RunError
from tests.unit.envs.libero import small_suite

pytestmark = small_suite.needs_opengl


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_suite.write(tmp_path_factory.mktemp("scenes"))


def made(scenes: Path, *keys: str, num_envs: int = 2) -> LiberoVectorEnv:
    own = [
        f"env.libero.suite={small_suite.NAME}",
        f"env.libero.scenes={scenes}",
        "env.image_size=32",
        "env.libero.pictures=fast",
        *keys,
    ]
    env = make_libero(load(["env=libero", "policy.kind=cnn", *own]).env, num_envs)
    assert isinstance(env, LiberoVectorEnv)
    return env


def reset(env: LiberoVectorEnv, *seeds: int) -> None:
    env.reset(np.arange(len(seeds)), np.array(seeds))


def test_the_seed_chooses_task_and_start(scenes: Path) -> None:
    env = made(scenes, "env.libero.settle_steps=0")
    frames = env.reset(np.arange(2), np.array([0, 5]))
    assert frames.instructions == ("task 0", "task 1") and env.spaces.instructions == ("task 0", "task 1")
    at = env._rows[0].task.scene.model.joint("box_joint").qposadr[0]
    assert env._rows[1].data.qpos[at] - env._rows[0].data.qpos[at] == pytest.approx(0.02)
    assert env._rows[0].task.scene is env._rows[1].task.scene  # equal scenes are compiled once


def test_what_robosuite_changed_is_changed(scenes: Path) -> None:
    model = Suite(scenes, small_suite.NAME, True).task(0).scene.model
    assert model.body("shelf").pos[2] == 0.06


def test_the_hand_goes_where_actions_send_it_and_rests_without(scenes: Path) -> None:
    env = made(scenes)
    reset(env, 0, 0)
    before = env._rows[0].arm.hand.copy()
    actions = np.zeros((2, 10, 7), np.float32)
    actions[0, :, 2] = 1.0  # aims 5 cm above it
    env.step_chunk(actions)
    assert env._rows[0].arm.hand[2] - before[2] > 0.03
    assert np.abs(env._rows[1].arm.hand - before).max() < 5e-3


def test_the_gripper_moves_at_one_speed_and_stays_where_it_is(scenes: Path) -> None:
    env = made(scenes, "env.libero.idle_gripper=0")
    reset(env, 0, 0)
    actions = np.zeros((2, 3, 7), np.float32)
    actions[0, :, 6], actions[1, :, 6] = 0.1, 1.0  # only its sign counts
    env.step_chunk(actions)
    one, other = (row.data.qpos[row.task.scene.fingers].copy() for row in env._rows)
    np.testing.assert_array_equal(one, other)
    env.step_chunk(np.zeros((2, 3, 7), np.float32))
    after = env._rows[0].data.qpos[env._rows[0].task.scene.fingers]
    assert np.abs(after - one).max() < 2e-3


@pytest.mark.parametrize(("gripper", "sign"), [(-1.0, -1.0), (1.0, 1.0)])
def test_the_gripper_while_objects_come_to_rest(scenes: Path, gripper: float, sign: float) -> None:
    env = made(scenes, f"env.libero.idle_gripper={gripper}", "env.libero.settle_steps=3")
    reset(env, 0, 0)
    assert np.array_equal(np.sign(env._controller._grip[0]), [-sign, sign])


def test_openness_of_openvla_s_checkpoints(scenes: Path) -> None:
    env, native = made(scenes, "env.libero.has_openness=true", num_envs=1), made(scenes, num_envs=1)
    assert env.spaces.action_low[-1] == 0.0
    for one, openness in ((env, 1.0), (native, -1.0)):
        reset(one, 0)
        actions = np.zeros((1, 4, 7), np.float32)
        actions[..., 6] = openness
        one.step_chunk(actions)
    np.testing.assert_array_equal(env._rows[0].data.qpos, native._rows[0].data.qpos)


def test_success_ends_and_pays_and_the_limit_truncates(scenes: Path) -> None:
    env = made(scenes, "env.max_control_steps=5")
    reset(env, 0, 0)
    row = env._rows[0]
    row.data.qpos[row.task.scene.model.joint("drawer_slide").qposadr[0]] = 0.15
    chunk = env.step_chunk(np.zeros((2, 8, 7), np.float32))
    assert chunk.rewards[0].tolist() == [1.0] + [0.0] * 7 and chunk.terminated[0] and chunk.success[0]
    assert chunk.infos[0]["done"]["success"] and chunk.infos[0]["episode_length"] == 1
    assert chunk.truncated[1] and not chunk.success[1] and chunk.step_valid[1].sum() == 5
    with pytest.raises(RuntimeError, match="have ended"):
        env.step_chunk(np.zeros((2, 1, 7), np.float32))


def test_a_row_that_diverges_is_void_and_the_others_go_on(scenes: Path) -> None:
    env = made(scenes)
    reset(env, 0, 0)
    env._rows[0].data.qvel[0] = np.inf
    chunk = env.step_chunk(np.zeros((2, 2, 7), np.float32))
    assert chunk.infra_fault.tolist() == [True, False] and "diverged" in chunk.infos[0]["fault"]
    assert not chunk.frames.images[0].any() and chunk.frames.images[1].any()
    reset(env, 0)
    assert not env.step_chunk(np.zeros((2, 2, 7), np.float32)).infra_fault.any()


def test_a_flame_is_drawn_while_the_stove_is_on(scenes: Path) -> None:
    env = made(scenes, num_envs=2)
    reset(env, 0, 0)
    row = env._rows[1]
    row.data.qpos[row.task.scene.model.joint("knob_turn").qposadr[0]] = 0.6
    frames = env.step_chunk(np.zeros((2, 1, 7), np.float32)).frames
    site = row.task.scene.model.site("flame").id
    assert row.task.scene.model.site_rgba[site, 3] == 1.0
    assert not np.array_equal(frames.images[0], frames.images[1])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["env.libero.suite=libero_cooking"], ["libero_cooking", "rlrun.envs.libero.export", "--python"]),
        (["env.libero.task_ids=[7]"], ["no task 7", "0 to 1"]),
    ],
)
def test_what_was_not_exported_is_refused_with_the_command(scenes: Path, keys: list[str], words: list[str]) -> None:
    with pytest.raises(RunError) as caught:
        made(scenes, *keys)
    assert all(word in f"{caught.value.message} {caught.value.remedy}" for word in words)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    scenes = small_suite.write(tmp_path)
    file = scenes / small_suite.NAME / "0" / "scene.xml"
    file.write_bytes(file.read_bytes().replace(b"0.6", b"0.7"))
    with pytest.raises(RunError, match=r"(?s)not as it was exported.*SHA-256"):
        made(scenes)


def test_a_changed_mesh_is_refused(tmp_path: Path) -> None:
    scenes = small_suite.write(tmp_path)
    content = b"v 0 0 0"
    (scenes / "assets").mkdir()
    (scenes / "assets" / export.asset_name(content, ".obj")).write_bytes(content + b" ")
    task = scenes / small_suite.NAME / "0"
    named = f'<mesh name="m" file="{export.asset_name(content, ".obj")}"/></asset><worldbody>'
    scene = (task / "scene.xml").read_bytes().replace(b"<worldbody>", b"<asset>" + named.encode(), 1)
    described = json.loads((task / "task.json").read_text())
    described["sha256"]["scene.xml"] = hashlib.sha256(scene).hexdigest()
    (task / "scene.xml").write_bytes(scene)
    (task / "task.json").write_text(json.dumps(described))
    with pytest.raises(RunError, match=r"(?s)\.obj is not as it was exported.*SHA-256 of its content"):
        made(scenes, "env.libero.task_ids=[0]")


def test_a_start_that_diverges_is_no_start(scenes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = made(scenes, num_envs=1)
    monkeypatch.setattr(env._rows[0].task, "sampled", np.full_like(env._rows[0].task.sampled, 1e12))
    with pytest.raises(SimulatorFault, match="diverged while objects came to rest in row 0"):
        reset(env, 0)


def test_other_contacts_are_told(scenes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made(scenes, num_envs=1)
    assert "computes contacts" not in caplog.text
    old = small_suite.write(tmp_path)
    for file in (old / small_suite.NAME).glob("*/task.json"):
        file.write_text(file.read_text().replace(f'"mujoco": "{mujoco.__version__}"', '"mujoco": "3.3.7"'))
    made(old, num_envs=1)
    assert "mujoco==3.3.7" in caplog.text and caplog.text.count("computes contacts") == 1


def test_the_wrong_sparse_factorization_is_not_used(scenes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mujoco, "__version__", "4.0.0")
    model = Suite(scenes, small_suite.NAME, True).task(0).scene.model
    assert model.opt.jacobian == mujoco.mjtJacobian.mjJAC_DENSE


@pytest.mark.parametrize(
    ("quaternion", "expected"),
    [
        ([0, 0, 0, 1], [0, 0, 0]),
        ([0, 0, 0, 1 + 1e-12], [0, 0, 0]),
        ([0, 0, np.sin(np.pi / 4), np.cos(np.pi / 4)], [0, 0, np.pi / 2]),
        ([1, 0, 0, 0], [np.pi, 0, 0]),
        ([0, np.sin(0.1), 0, np.cos(0.1)], [0, 0.2, 0]),
    ],
)
def test_axis_angle(quaternion: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(axis_angle(np.array(quaternion, float)), expected, atol=1e-9)


def test_the_version_that_returns_garbage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_renderer()
    monkeypatch.setattr("mujoco.__version__", "3.17.0")
    with pytest.raises(RunError, match=r"(?s)3\.17\.0.*mujoco==3\.3\.7"):
        check_renderer()


@pytest.mark.parametrize(
    ("key", "words"), [("backend=robosuite", "scripts/oracles"), ("physics=warp", "env.simulator=libero_warp")]
)
def test_keys_of_worlds_that_left_are_refused_with_where_they_went(key: str, words: str) -> None:
    with pytest.raises(RunError, match=rf"(?s)Unknown key 'env\.libero\.{key.partition('=')[0]}'.*{words}"):
        load(["env=libero", "policy.kind=cnn", f"env.libero.{key}"])


@pytest.mark.parametrize(
    "change", [{"goal": []}, {"instruction": ""}, {"goal": 7}, {"things": None}, {"sha256": {}}, {"robot": []}]
)
def test_a_description_of_another_form_is_refused(tmp_path: Path, change: dict) -> None:
    file = small_suite.write(tmp_path) / small_suite.NAME / "0" / "task.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(RunError, match=r"(?s)task\.json is not as it was exported.*export the task again"):
        Suite(tmp_path, small_suite.NAME, None).task(0)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "7", '{"format": 2'])
def test_a_description_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    file = small_suite.write(tmp_path) / small_suite.NAME / "0" / "task.json"
    file.write_text(text)
    with pytest.raises(RunError, match=r"task\.json is not as it was exported"):
        Suite(tmp_path, small_suite.NAME, None).task(0)


def test_a_changed_description_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = small_suite.write(tmp_path) / small_suite.NAME / "0" / "task.json"
    described = json.loads(file.read_text())
    suite = Suite(tmp_path, small_suite.NAME, None)
    assert "suite.json has no digest: an older rlrun exported it" in caplog.text
    caplog.clear()
    assert suite.described(0) == suite.described(0) == described
    assert caplog.text.count("task.json has no digest: an older rlrun exported it") == 1
    file.write_text(json.dumps(described | {export.OWN_DIGEST: export.digest_of(described)}))
    before = suite.described(0)
    assert before == described
    file.write_text(json.dumps(described | {export.OWN_DIGEST: export.digest_of(described), "instruction": "another"}))
    with pytest.raises(RunError, match="does not have the digest"):
        suite.described(0)


def test_an_own_reward_has_the_positions_of_bodies(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "def high(observation, action, info, reward):\n    "
    body = "return info['bodies']['box'][2] + observation['proprio'][0]\n"
    (tmp_path / "libero_terms.py").write_text(head + body)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = [
        f"env.libero.suite={small_suite.NAME}",
        f"env.libero.scenes={scenes}",
        "env.image_size=32",
        "env.libero.pictures=fast",
    ]
    config = load(["env=libero", "policy.kind=cnn", *own, "env.reward=libero_terms:high"]).env
    env = make_env(config, 1)
    env.reset(np.arange(1), np.arange(1))
    result = env.step_chunk(np.zeros((1, 3, 7), np.float32))
    height = result.rewards[0, -1] - result.frames.proprio[0, 0]
    assert result.step_valid.all() and 0.0 < height < 1.0
    env.close()


@pytest.mark.parametrize(
    ("suite", "sentence"),
    [("small_lan", "switch on the stove"), ("small_task", "switch on the stove"), ("small_swap", None)],
)
def test_a_suite_that_asks_otherwise_says_so(suite: str, sentence: str | None, tmp_path: Path) -> None:
    """The name of its file, which LIBERO takes for the sentence, is that of the task that it changes."""
    folder = small_suite.write(tmp_path) / small_suite.NAME
    file = folder / "0" / "task.json"
    described = json.loads(file.read_text())
    file.write_text(json.dumps(described | {"bddl": "(define (problem P)\n  (:language Switch on  the stove)\n)"}))
    folder.rename(tmp_path / suite)
    found = Suite(tmp_path, suite)
    wanted = sentence or described["instruction"]
    assert found.described(0)["instruction"] == wanted and found.task(0).instruction == wanted
