"""BEHAVIOR-1K as a VectorEnv: rows of one OmniGibson simulator, which takes over its process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlrun.config.schema import EnvConfig
from rlrun.edges.episode_numbers import Totals
from rlrun.edges.frames import ChunkResult, Frames
from rlrun.edges.spaces import Spaces
from rlrun.envs import r1pro
from rlrun.envs.info_numbers import InfoReader
from rlrun.envs.omnigibson.configuration import (
    CAMERA_KEY,
    CONTROLLERS,
    HEAD_LINK,
    ROBOT,
    TIMEOUT,
    instruction,
    to_numpy,
    to_rgb,
)
from rlrun.envs.omnigibson.generations import Simulation, Stepped, open_simulation
from rlrun.envs.omnigibson.instances import InstanceLoader
from rlrun.envs.omnigibson.launch import launch
from rlrun.envs.omnigibson.spec import OmniGibsonConfig
from rlrun.envs.vector_env import ChunkBuilder, SimulatorFault, VectorEnv

logger = logging.getLogger(__name__)


def q_score(now: Sequence[Sequence[bool]], at_reset: Sequence[Sequence[bool]], is_success: bool) -> float:
    """Return the challenge's partial score: 1 on success, else the largest share of newly true literals of an option.

    now, at_reset: for every ground option of the goal, which literals hold. Example: 2/3 if two of three cans are in
    the bin and none was at the reset.
    """
    if is_success:
        return 1.0
    shares = [
        sum(holds and not held for holds, held in zip(option, before, strict=True)) / len(option)
        for option, before in zip(now, at_reset, strict=True)
        if option
    ]
    return float(max(shares, default=0.0))


def is_success(info: dict[str, Any]) -> bool:
    """Return whether the goal is satisfied."""
    return bool(info["done"]["success"])


def is_terminated(info: dict[str, Any]) -> bool:
    """Return whether the task itself has ended: by any condition except the time limit, which only truncates."""
    conditions = info["done"].get("termination_conditions", {})
    return is_success(info) or any(bool(state["done"]) for name, state in conditions.items() if name != TIMEOUT)


def step_info(info: dict[str, Any], num_steps: int, is_truncated: bool) -> dict[str, Any]:
    """Return the parts of OmniGibson's info that rlrun keeps, as plain data, with rlrun's step count and time limit."""
    done = info["done"]
    reward = info.get("reward", {})
    goal = done.get("goal_status", {})
    conditions = {
        name: {"done": bool(state["done"]), "success": bool(state["success"])}
        for name, state in done.get("termination_conditions", {}).items()
    }
    conditions[TIMEOUT] = {"done": is_truncated, "success": False}
    breakdown = {name: float(value) for name, value in reward.get("reward_breakdown", {}).items()}
    return {
        "reward": {**{name: {} for name in breakdown}, "reward_breakdown": breakdown},
        "done": {
            "success": is_success(info),
            "termination_conditions": conditions,
            "goal_status": {name: [int(i) for i in goal.get(name, ())] for name in ("satisfied", "unsatisfied")},
        },
        "episode_length": num_steps,
    }


@dataclass
class Row:
    """The state of one row's episode."""

    num_steps: int = 0
    is_over: bool = True  # also before the first reset
    at_reset: list[list[bool]] = field(default_factory=list)  # goal literals that held at the reset
    action: np.ndarray | None = None  # last action, 23-D
    info: Mapping[str, Any] = field(default_factory=dict)  # OmniGibson's, of the last control step
    totals: Totals = field(default_factory=dict)  # numbers of it in the running chunk


class OmniGibsonVectorEnv(VectorEnv):
    """B rows that share one simulator. Its step moves all rows; rows that are not active are restored."""

    def __init__(self, config: EnvConfig, num_envs: int, progress: Callable[[], None] = lambda: None):
        self.config = config
        self._own = own = config.section(OmniGibsonConfig)
        self.num_envs = num_envs
        og = launch(config, progress)
        self._simulation: Simulation | None = open_simulation(og, config, num_envs)
        progress()
        self._order = action_order(self._simulation.robot(0))
        self._instances = InstanceLoader(self._simulation, config)
        self._prepare_robots()
        progress()
        self._rows = [Row() for _ in range(num_envs)]
        self._info_reader = InfoReader(config.info or ())  # all numbers that OmniGibson says would be too many
        self._size = config.image_size
        parts = tuple(part for part in r1pro.ACTION_PARTS if part in own.controlled)
        self._driven = np.concatenate([np.arange(r1pro.NUM_ACTIONS)[r1pro.ACTION_PARTS[part]] for part in parts])
        low, high = r1pro.action_limits()
        fields = r1pro.PROPRIO_256 if own.proprio.value == "full_256" else r1pro.PROPRIO_61
        self.spaces = Spaces(
            num_actions=len(self._driven),
            num_choices=None,
            action_low=tuple(low[self._driven].tolist()),
            action_high=tuple(high[self._driven].tolist()),
            num_proprio=max(where.stop for where in fields.values()),
            num_images=len(own.cameras),
            cameras=tuple(own.cameras),
            action_names=r1pro.action_names(parts),
            control_hz=float(config.action_hz),
            instructions=(instruction(config),),
        )

    @property
    def simulation(self) -> Simulation:
        """The running simulator."""
        if self._simulation is None:
            raise RuntimeError("this environment is closed")
        return self._simulation

    def _prepare_robots(self) -> None:
        """Set camera sizes and the mass of the base, as in the challenge."""
        settings = self.config.section(OmniGibsonConfig)
        for row in range(self.num_envs):
            robot = self.simulation.robot(row)
            with self.simulation.editing_usd():
                for link in self._own.cameras:
                    sensor = robot.sensors[CAMERA_KEY.format(link=link)]
                    side = settings.head_resolution if link == HEAD_LINK else settings.wrist_resolution
                    sensor.image_height = side
                    sensor.image_width = side
                    if link == HEAD_LINK:
                        sensor.horizontal_aperture = settings.head_aperture
        self.simulation.load_spaces()
        if settings.base_mass_kg is not None:
            # masses can only be set while the simulation is stopped
            with self.simulation.og.sim.stopped(), self.simulation.editing_usd():
                for row in range(self.num_envs):
                    self.simulation.robot(row).base_footprint_link.mass = settings.base_mass_kg
            self.simulation.update_handles()

    # --- episodes ---------------------------------------------------------------------------------

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        ids = [int(row) for row in env_ids]
        running = [row for row in range(self.num_envs) if row not in ids and not self._rows[row].is_over]
        with self.simulation.keeping(running):  # a reset settles objects, which advances all rows
            for row, seed in zip(ids, seeds, strict=True):
                self._instances.prepare(row, int(seed))
            self.simulation.reset(ids)
            for row in ids:
                self._instances.check_pose(row)
            self.simulation.og.sim.step_physics()  # a new pose reaches the renderer by a physics step
        self.simulation.render(self.config.section(OmniGibsonConfig).renders_after_reset)
        for row in ids:
            self._rows[row] = Row(is_over=False, at_reset=self.simulation.goal_options(row), action=rest_action())
        frames, blind = self._frames(ids)
        if blind:
            raise SimulatorFault(f"after a reset {blind[min(blind)]}")
        return frames

    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        active = np.ones(self.num_envs, bool) if active is None else np.asarray(active, bool)
        actions = self.checked(actions, active, np.array([row.is_over for row in self._rows]))
        kept = [row for row in range(self.num_envs) if not active[row] and not self._rows[row].is_over]
        for state in self._rows:
            state.totals = {}
        chunk = ChunkBuilder(*actions.shape[:2])
        frames = self._blank(self.num_envs)
        with self.simulation.keeping(kept):
            self._run(actions, np.flatnonzero(active).tolist(), chunk, frames)
        for row in np.flatnonzero(chunk.infra_fault).tolist():
            logger.warning("episode void: %s", chunk.infos[row]["fault"])
        return chunk.result(frames)

    def _run(self, actions: np.ndarray, going: list[int], chunk: ChunkBuilder, frames: Frames) -> None:
        """Run all control steps of a chunk; a row that ends is observed at its end."""
        for k in range(actions.shape[1]):
            if not going:
                return
            for row in going:
                whole = rest_action()
                whole[self._driven] = actions[row, k]
                self._rows[row].action = whole
            is_last = k == actions.shape[1] - 1
            stepped = self.simulation.step(self._commands(going), is_rendered=is_last)
            ending = [row for row in going if self._account(row, stepped[row], k, chunk) or is_last]
            ending = [row for row in ending if not chunk.infra_fault[row]]
            if ending:
                # Pictures lag by some renders, and the steps before may not have been rendered at all.
                self.simulation.render(max(0, self.config.section(OmniGibsonConfig).renders_at_chunk_end - is_last))
                self._look(ending, chunk, frames)
            going = [row for row in going if not self._rows[row].is_over]

    def _commands(self, going: list[int]) -> np.ndarray:
        """Return float32 [B, 23] in the robot's order; rows that are not in `going` stand still."""
        commands = np.stack([rest_action()] * self.num_envs)
        for row, state in enumerate(self._rows):
            if state.action is not None:
                commands[row] = state.action
            if row not in going:
                commands[row, r1pro.ACTION_PARTS["base"]] = 0.0
        return commands[:, self._order]

    def _account(self, row: int, stepped: Stepped, k: int, chunk: ChunkBuilder) -> bool:
        """Record one control step of one row. Returns whether its episode is over."""
        state = self._rows[row]
        if not np.isfinite(stepped.reward):
            chunk.fail(row, f"row {row}: reward is {stepped.reward} at control step {state.num_steps + 1}")
            state.is_over = True
            return False
        state.num_steps += 1
        terminated = is_terminated(stepped.info)
        truncated = not terminated and state.num_steps >= self.config.max_control_steps
        state.is_over = terminated or truncated
        chunk.add(row, k, stepped.reward, terminated, truncated, is_success(stepped.info))
        state.info = stepped.info
        self._info_reader.add(state.totals, stepped.info)
        chunk.infos[row] = step_info(stepped.info, state.num_steps, truncated)
        self._info_reader.write(chunk.infos[row], state.totals)
        return state.is_over

    def _look(self, rows: list[int], chunk: ChunkBuilder, frames: Frames) -> None:
        """Store frames and scores of rows as they are now; a row that cannot be observed has failed."""
        observed, blind = self._frames(rows)
        for at, row in enumerate(rows):
            if row in blind:
                chunk.fail(row, blind[row])
                self._rows[row].is_over = True
                continue
            options = self.simulation.goal_options(row)
            chunk.q_score[row] = q_score(options, self._rows[row].at_reset, bool(chunk.success[row]))
            frames.images[row] = observed.images[at]
            frames.proprio[row] = observed.proprio[at]
        if len(blind) == self.num_envs > 1:
            raise SimulatorFault(f"no row can be looked at: {blind[rows[0]]}")

    def _blank(self, num_rows: int) -> Frames:
        images = np.zeros((num_rows, len(self._own.cameras), self._size, self._size, 3), np.uint8)
        proprio = np.zeros((num_rows, self.spaces.num_proprio), np.float32)
        return Frames(images, proprio, (instruction(self.config),) * num_rows)

    # --- what the robot perceives -------------------------------------------------------------------

    def _frames(self, rows: Sequence[int]) -> tuple[Frames, dict[int, str]]:
        """Return frames of these rows, and a reason by row for missing ones. Black cameras are first rendered again."""
        settings = self.config.section(OmniGibsonConfig)
        observations, black = self._observed(rows)
        for _ in range(settings.render_retries):
            if not any(black):
                break
            self.simulation.render(1)
            observations, black = self._observed(rows)
        frames = self._blank(len(rows))
        blind: dict[int, str] = {}
        for at, (row, observation) in enumerate(zip(rows, observations, strict=True)):
            felt = to_numpy(observation[ROBOT]["proprio"]).astype(np.float32)
            if felt.shape != (self.spaces.num_proprio,):
                raise SimulatorFault(f"proprioception is {felt.shape}, expected ({self.spaces.num_proprio},)")
            if black[at]:
                renders = settings.renders_after_reset + settings.render_retries
                blind[row] = f"row {row}: {', '.join(black[at])} still black after {renders} renders"
            elif not np.isfinite(felt).all():
                blind[row] = f"row {row}: proprioception holds NaN or infinity"
            else:
                frames.proprio[at] = felt
                frames.images[at] = [to_rgb(self._picture(observation, link), self._size) for link in self._own.cameras]
        return frames, blind

    def _observed(self, rows: Sequence[int]) -> tuple[list[dict[str, Any]], list[list[str]]]:
        """Return observations of these rows, with pictures in host memory, and the black cameras of each row."""
        observations = self.simulation.observe(rows)
        black = []
        for observation in observations:
            for link in self._own.cameras:
                camera = observation[ROBOT][CAMERA_KEY.format(link=link)]
                camera["rgb"] = to_numpy(camera["rgb"])
            black.append([link for link in self._own.cameras if not self._picture(observation, link)[..., :3].any()])
        return observations, black

    @staticmethod
    def _picture(observation: dict[str, Any], link: str) -> Any:
        return observation[ROBOT][CAMERA_KEY.format(link=link)]["rgb"]

    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        """Return the first camera's view, by default the head's, centred in a frame of the wanted shape."""
        (observation,) = self.simulation.observe([env_id])
        side = min(height, width)
        picture = np.zeros((height, width, 3), np.uint8)
        top = (height - side) // 2
        left = (width - side) // 2
        picture[top : top + side, left : left + side] = to_rgb(self._picture(observation, self._own.cameras[0]), side)
        return picture

    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        raise NotImplementedError(
            "OmniGibson has no scripted expert: give demonstrations in demos.path, or a policy in policy.path"
        )

    def info(self, env_id: int) -> Mapping[str, Any]:
        return self._rows[env_id].info

    def close(self) -> None:
        self._simulation = None


def rest_action() -> np.ndarray:
    """Return float32 [23]: base at rest, trunk and arms at the reset pose, grippers open."""
    action = np.zeros(r1pro.NUM_ACTIONS, np.float32)
    for part in ("trunk", "arm_left", "arm_right"):
        action[r1pro.ACTION_PARTS[part]] = [r1pro.RESET_POSE[name] for name in r1pro.joints_of(part)]
    for side in r1pro.SIDES:
        action[r1pro.ACTION_PARTS[f"gripper_{side}"]] = 1.0
    return action


def action_order(robot: Any) -> np.ndarray:
    """Return int [23]: the index in rlrun's action for each dimension of the robot's action."""
    index = {name: to_numpy(where).astype(int).ravel() for name, where in robot.controller_action_idx.items()}
    sizes = {name: len(where) for name, where in index.items() if len(where)}  # the camera's controller takes none
    if sizes != CONTROLLERS:
        raise SimulatorFault(f"the robot's controllers take {sizes}, expected {CONTROLLERS}")
    order = np.zeros(r1pro.NUM_ACTIONS, int)
    for part, where in index.items():
        if len(where):
            order[where] = np.arange(r1pro.NUM_ACTIONS)[r1pro.ACTION_PARTS[part]]
    return order
