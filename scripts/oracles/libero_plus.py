"""Record LIBERO-Plus itself: what rlrun's variants are compared with. Run by an interpreter that has its package.

    PLUS_PYTHON scripts/oracles/libero_plus.py places OUT.json
        where each problem puts its camera for every view that a name has, and the arm's poses
    PLUS_PYTHON scripts/oracles/libero_plus.py noise tests/golden/libero_plus_noise.npz
        every sixteenth row and column of a picture with each noise
    PLUS_PYTHON scripts/oracles/libero_plus.py frames OUT.npz SUITE NUMBER …
        first states and pictures of variants, by their numbers in the suite's order

docs/libero.md has how that interpreter is made. LIBERO's meshes take the place of those of LIBERO-Plus.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import pickle
import re
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np

SIZE = 256
SETTLE_STEPS = 10
NOISE_SEED = 0
IDLE = np.array([0, 0, 0, 0, 0, 0, -1.0])
PROBLEMS = ("tabletop", "kitchen_tabletop", "living_room_tabletop", "study_tabletop", "floor")
CAMERAS = ("agentview", "robot0_eye_in_hand")


def package() -> Path:
    """Return the folder of the package, with LIBERO's assets in it."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.pop("LIBERO_CONFIG_PATH", None)
    from libero.libero import get_libero_path

    assets = Path(get_libero_path("assets")).resolve()
    settings = Path(sys.prefix) / "liberoplus"  # where the package writes its paths, else to the home folder
    settings.mkdir(exist_ok=True)
    os.environ["LIBERO_CONFIG_PATH"] = str(settings)
    folder = Path(importlib.import_module("liberoplus.liberoplus").__file__).parent
    if not (folder / "assets").exists():
        (folder / "assets").symlink_to(assets)
    return folder


def names(folder: Path, suite: str) -> list[str]:
    """Return LIBERO-Plus's names of a suite's variants, in its order; its own module wants torch."""
    parsed = ast.parse((folder / "benchmark" / "libero_suite_task_map.py").read_text())
    (table,) = [node.value for node in parsed.body if isinstance(node, ast.Assign)]
    return ast.literal_eval(table)[suite]


def record_places(out: str) -> None:
    """Write {"cameras": [[problem, view, position, quaternion], …], "arms": [[7 joints], …]}."""
    folder = package()
    views = set()
    for suite in ("libero_spatial", "libero_object", "libero_goal", "libero_10"):
        views |= {found[1] for name in names(folder, suite) if (found := re.search(r"_view_(\d+(_\d+){4})_init", name))}
    cameras = []
    for problem in PROBLEMS:
        module = importlib.import_module(f"liberoplus.liberoplus.envs.problems.libero_{problem}_manipulation")
        (kind,) = [
            one for name, one in vars(module).items() if name.lower() == f"libero_{problem}_manipulation".lower()
        ]
        for view in sorted(views):
            seen = {}
            sideways, upwards, percent, about_z, about_y = view.split("_")
            asked = SimpleNamespace(
                horizon_view=sideways,
                vertical_view=upwards,
                scale_factor=float(int(percent) / 100),
                end_point_rot=about_z,
                end_point_vertical=about_y,
            )
            arena = SimpleNamespace(
                set_camera=lambda camera_name, pos, quat, seen=seen: seen.update({camera_name: (pos, quat)})
            )
            kind._setup_camera(asked, arena)
            cameras.append([problem, view, *map(list, seen["agentview"])])
    robots = importlib.import_module("liberoplus.liberoplus.envs.robots")
    arms = [getattr(robots, f"MountedPanda{k}").init_qpos.fget(None).tolist() for k in range(1, 501)]
    ground = [getattr(robots, f"OnTheGroundPanda{k}").init_qpos.fget(None).tolist() for k in range(1, 501)]
    assert arms == ground
    Path(out).write_text(json.dumps({"cameras": cameras, "arms": arms}))


def record_frames(out: str, suite: str, numbers: list[int]) -> None:
    """Write for each variant, from its first start and after ten idle steps: state, both pictures, sentence."""
    folder = package()
    from liberoplus.liberoplus.envs.env_wrapper import OffScreenRenderEnv

    found = {}
    opened = {}
    for number in numbers:
        began = time.process_time()
        name = names(folder, suite)[number]
        scene, _, noise = name.partition("_noise_")
        if scene not in opened:
            for world in opened.values():
                world.close()
            file = str(folder / "bddl_files" / suite / f"{scene}.bddl")
            opened = {scene: OffScreenRenderEnv(file, camera_heights=SIZE, camera_widths=SIZE, hard_reset=False)}
        world = opened[scene]
        world.noise = int(noise or 0)
        world.seed(0)
        world.reset()
        world.set_init_state(_first_start(folder, suite, name))
        for robot in world.robots:
            robot.gripper.current_action = np.zeros_like(robot.gripper.current_action)
        for _ in range(SETTLE_STEPS):
            world.env.step(IDLE)
        data = world.sim.data
        key = f"{suite}/{number}"
        found[f"{key}/state"] = np.concatenate([data.qpos, data.qvel])
        found[f"{key}/pictures"] = _pictures(world)
        found[f"{key}/sentence"] = np.array(world.language_instruction)
        print(f"recorded {key} {name} in {time.process_time() - began:.0f} s", flush=True)
    np.savez_compressed(out, **found)


def _pictures(world) -> np.ndarray:
    """Return both pictures of the state, with noise from one seed: those of a step are one physics step older."""
    drawn = [world.sim.render(camera_name=camera, height=SIZE, width=SIZE) for camera in CAMERAS]
    own_step = world.env.step
    world.env.step = lambda action: ({"agentview_image": drawn[0]},)
    np.random.seed(NOISE_SEED)  # noqa: NPY002  (its package draws from it)
    seen, *_ = world.step(None)
    world.env.step = own_step
    return np.stack([seen["agentview_image"], drawn[1]])


def record_noise(out: str) -> None:
    """Write "picture" [256, 256, 3], and "noisy" [50, 16, 16, 3]: with noise k from seed k."""
    package()
    from liberoplus.liberoplus.envs.env_wrapper import ControlEnv

    y, x = np.mgrid[:SIZE, :SIZE]
    grain = np.random.RandomState(3).randint(-9, 9, x.shape)
    disc = np.where((x - 100) ** 2 + (y - 140) ** 2 < 3000, 230, 60)
    picture = np.stack([(x // 32 * 29 + y // 64 * 17) % 256, np.clip(x + grain, 0, 255), disc], -1).astype(np.uint8)
    world = ControlEnv.__new__(ControlEnv)
    world.env = SimpleNamespace(step=lambda action: ({"agentview_image": picture},))
    found = []
    for number in range(1, 51):
        world.noise = number
        np.random.seed(number)  # noqa: NPY002
        found.append(world.step(None)[0]["agentview_image"][::16, ::16].copy())
    np.savez_compressed(out, picture=picture, noisy=np.stack(found))


def _first_start(folder: Path, suite: str, name: str) -> np.ndarray:
    """Return the variant's first start; the files are torch's, of a NumPy array."""
    if re.search(r"_level\d+_sample\d+$", name):
        file = folder / "init_files" / "libero_newobj" / suite / f"{name}.pruned_init"
    else:
        task = re.split(r"_language_\d|_view_", name)[0]
        file = folder / "init_files" / suite / f"{task}.pruned_init"
    with zipfile.ZipFile(file) as archive:
        (pickled,) = [one for one in archive.namelist() if one.endswith("data.pkl")]
        states = pickle.loads(archive.read(pickled))
    return states.reshape(-1, states.shape[-1])[0]


def main(arguments: list[str]) -> None:
    command, out, *rest = arguments
    if command == "places":
        record_places(out)
    elif command == "noise":
        record_noise(out)
    else:
        suite, *numbers = rest
        record_frames(out, suite, [int(number) for number in numbers])


if __name__ == "__main__":
    main(sys.argv[1:])
