"""Record LIBERO in robosuite: what rlrun's own LIBERO world is compared with. Run by an interpreter that has LIBERO.

    LIBERO_PYTHON scripts/oracles/libero_in_robosuite.py OUT.npz STEPS STARTS SUITE:TASK …
        paths of the states, for benchmarks/libero.py
    LIBERO_PYTHON scripts/oracles/libero_in_robosuite.py tests/golden/libero_torques.npz controller
        inputs and torques of the controller

Actions are of two kinds, each by seed: uniform in every control step, and held for 20 of them, which moves things.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

KINDS = ("uniform", "held")
SETTLE_STEPS = 10
NUM_JUDGED = 100  # states in which the predicates of a goal are judged
IDLE = np.array([0, 0, 0, 0, 0, 0, -1.0])


def actions_of(kind, seed, num_steps):
    """Return actions float64 [num_steps, 7] that float32 holds exactly."""
    generator = np.random.default_rng(seed)
    if kind == "uniform":
        actions = generator.uniform(-1, 1, (num_steps, 7))
    else:
        held = np.zeros((-(-num_steps // 20), 7))
        held[:, :3] = generator.uniform(-1, 1, (len(held), 3)) - [0, 0, 0.2]
        held[:, 3:6] = generator.uniform(-0.3, 0.3, (len(held), 3)) * (generator.random((len(held), 1)) < 0.5)
        held[:, 6] = generator.choice([-1, 1], len(held))
        actions = np.repeat(held, 20, axis=0)[:num_steps]
    return np.clip(actions, -1, 1).astype(np.float32).astype(np.float64)


def opened(suite_name, task):
    """Return robosuite's environment of a task, and its published starts."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    from libero.libero import benchmark
    from libero.libero.envs.env_wrapper import ControlEnv

    suite = benchmark.get_benchmark_dict()[suite_name]()
    world = ControlEnv(
        bddl_file_name=suite.get_task_bddl_file_path(task),
        use_camera_obs=False,
        has_offscreen_renderer=False,
        hard_reset=False,
        ignore_done=True,
    )
    return world, suite.get_task_init_states(task)


def begin(world, start):
    """Reset to a published start, with an open gripper at rest."""
    world.seed(0)
    world.env.reset()
    for robot in world.robots:
        robot.gripper.current_action = np.zeros_like(robot.gripper.current_action)
    world.set_init_state(start)


def record_states(out, num_steps, num_starts, tasks):
    """Write for each task, start and kind of actions: states, proprioception, rewards, CPU seconds, judged goals."""
    found = {}
    for asked in tasks:
        suite_name, _, task = asked.partition(":")
        world, starts = opened(suite_name, int(task))
        for start in range(num_starts):
            for kind in KINDS:
                begin(world, starts[start])
                for _ in range(SETTLE_STEPS):
                    world.step(IDLE)
                rows = []
                began = time.process_time()
                for action in actions_of(kind, start, num_steps):
                    _, reward, _, _ = world.step(action)
                    seen = world.env._get_observations(force_update=True)  # else it is one physics step old
                    hand = [seen["robot0_eef_pos"], seen["robot0_eef_quat"], seen["robot0_gripper_qpos"]]
                    data = world.sim.data
                    state = data.qpos.copy(), data.qvel.copy(), data.qacc_warmstart.copy()
                    rows.append((*state, np.concatenate(hand), reward))
                cpu_s = time.process_time() - began
                for at, name in enumerate(("qpos", "qvel", "qacc_warmstart", "proprio", "rewards")):
                    found[f"{asked}/path/{start}/{kind}/{name}"] = np.array([row[at] for row in rows])
                found[f"{asked}/path/{start}/{kind}/cpu_s"] = np.array(cpu_s)
        begin(world, starts[0])
        found[f"{asked}/goal/qpos"], found[f"{asked}/goal/holds"] = judged(world, np.random.default_rng(0))
        world.close()
        print(f"recorded {asked}", flush=True)
    np.savez_compressed(out, **found)


def judged(world, generator):
    """Return positions [N, nq], and whether each predicate of the goal holds there, bool [N, L].

    Each state has the goal's things placed anew: joints anywhere in their range, objects about where they shall be.
    """
    from libero.libero.envs.predicates import eval_predicate_fn

    env, sim = world.env, world.sim
    literals, begun, states, holds = env.parsed_problem["goal_state"], sim.data.qpos.copy(), [], []
    for _ in range(NUM_JUDGED):
        sim.data.qpos[:] = begun
        for literal in literals:
            sim.forward()
            if len(literal) == 3:
                _place(env, literal[1], env.object_states_dict[literal[2]].get_geom_state()["pos"], generator)
            else:
                _turn(env, literal[1], generator)
        sim.forward()
        states.append(sim.data.qpos.copy())
        things = env.object_states_dict
        holds.append([bool(eval_predicate_fn(name, *(things[one] for one in names))) for name, *names in literals])
    return np.array(states), np.array(holds)


def _place(env, name, point, generator):
    """Put an object about a point: within 1, 3 or 10 cm to the sides, and up to 3 or 12 cm above."""
    aside = generator.choice([0.01, 0.03, 0.1])
    offset = [*generator.uniform(-aside, aside, 2), generator.uniform(-0.03, generator.choice([0.03, 0.12]))]
    joint = env.get_object(name).joints[-1]
    env.sim.data.set_joint_qpos(joint, [*(point + offset), *env.sim.data.get_joint_qpos(joint)[3:]])


def _turn(env, name, generator):
    """Set the joints of a thing, or of the thing that a site belongs to, anywhere in their range."""
    state = env.object_states_dict[name]
    thing = env.object_sites_dict[name] if state.object_state_type == "site" else env.get_object(name)
    for joint in thing.joints:
        low, high = env.sim.model.jnt_range[env.sim.model.joint_name2id(joint)]
        env.sim.data.set_joint_qpos(joint, generator.uniform(low, high))


def record_controller(out):
    """Write inputs and torques of the controller in some physics steps of three scenes."""
    samples = []
    for suite_name, task in (("libero_goal", 7), ("libero_object", 0), ("libero_10", 2)):
        world, starts = opened(suite_name, task)
        begin(world, starts[1])
        controller, data, step = world.robots[0].controller, world.sim.data, world.sim.step

        def recorded(controller=controller, data=data, step=step):
            names = {
                "joints": controller.joint_pos,
                "velocities": controller.joint_vel,
                "hand": controller.ee_pos,
                "rotation": controller.ee_ori_mat,
                "jacobian": controller.J_full,
                "inertia": controller.mass_matrix,
                "bias": controller.torque_compensation,
                "aim": controller.goal_pos,
                "aim_rotation": controller.goal_ori,
                "rest": controller.initial_joint,
                "torques": controller.torques,
            }
            samples.append({name: np.array(value) for name, value in names.items()})
            step()

        world.sim.step = recorded
        for action in actions_of("uniform", 3, 12):
            world.step(action)
        world.close()
    chosen = samples[:: len(samples) // 60]
    np.savez_compressed(out, **{name: np.stack([one[name] for one in chosen]) for name in chosen[0]})


def main(arguments):
    if arguments[1:] == ["controller"]:
        record_controller(arguments[0])
    else:
        record_states(arguments[0], int(arguments[1]), int(arguments[2]), arguments[3:])


if __name__ == "__main__":
    main(sys.argv[1:])
