"""A simulator that is made again if it raises or returns implausible data: its rows are void, not failures."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rlrun.edges.frames import ChunkResult, Frames
from rlrun.envs.make import close_or_warn, simulator_code
from rlrun.envs.plausibility import BUG, RepeatedFaults, check_frames, check_result, place_of, reward_limit
from rlrun.envs.vector_env import NoPicture, SimulatorFault, VectorEnv
from rlrun.system.errors import ExitStatus, RunError
from rlrun.system.process_io import empty_standard_input

logger = logging.getLogger(__name__)

FIRST_STARTS = 2  # attempts of the first start: some simulators need two; a lasting fault is reported soon


class RestartingEnv(VectorEnv):
    """A simulator that `make` makes, and makes again after each fault, `limit` times at most.

    A fault in `step_chunk` is an infra fault of every active row. A reset that fails is repeated in the new simulator;
    running episodes of other rows are lost with the old one, and their next chunk reports an infra fault.
    """

    def __init__(
        self,
        make: Callable[[], VectorEnv],
        limit: int,
        max_abs_reward: float | None = None,
        log_path: Callable[[], Path | None] = lambda: None,
        worker: str = "",
    ):
        """max_abs_reward: of a control step; more is a fault. None: only the simulator's own declaration limits it.

        log_path: returns the file that has this worker's log, for messages; None: there is none. worker: as "env/1".
        """
        self.faults: list[str] = []  # each of them was followed by a new simulator
        self._row_faults: list[str] = []  # of single rows, since the last call of `drain_row_faults`
        self._make = make
        self._limit = limit
        self._log_path = log_path
        self._no_picture = ""  # why no overview can be drawn; "": one could, or none was asked for
        self._of_worker = f" of {worker}" if worker else ""
        self._env = env = self._started()
        self._repeated = RepeatedFaults(env.num_envs)  # one count for all rows, which break together
        self.num_envs = env.num_envs
        self.spaces = env.spaces
        self.largest_reward = env.largest_reward
        self.fingerprint = env.fingerprint
        self._shown: tuple[int, ...] | None = None  # cameras of the simulator; None: all, in its order
        self.reward_limit = reward_limit(env.largest_reward, max_abs_reward)
        self._seeds = np.zeros(env.num_envs, np.int64)  # of the running episodes
        self._num_steps = np.zeros(env.num_envs, np.int64)  # control steps that they have done
        self._is_lost = np.zeros(env.num_envs, bool)  # rows whose episode was lost with an earlier simulator
        self._image_shape: tuple[int, ...] = ()  # of one row

    def _started(self) -> VectorEnv:
        """Make the first simulator, with a second attempt if it breaks while it starts. Raises RunError after that."""
        while True:
            try:
                return self._make()
            except SimulatorFault as fault:
                self.faults.append(str(fault))
                logger.warning("the simulator did not start", exc_info=fault)
                if len(self.faults) >= min(FIRST_STARTS, self._limit + 1):
                    raise self._never_started() from fault

    def show(self, cameras: tuple[int, ...] | None) -> None:
        """Show only these cameras of the simulator, by their index there, in this order; None: all, in its order."""
        self._shown = cameras
        self.spaces = self._env.spaces.showing(cameras)

    def reset(self, env_ids: np.ndarray, seeds: np.ndarray) -> Frames:
        while True:
            try:
                with simulator_code():
                    frames = self._env.reset(env_ids, seeds)
                self._check_reset(frames, seeds)
            except RunError as error:  # of the configuration or of the simulator: a second attempt would repeat it
                self._locate(error)
                raise
            except Exception as fault:  # a simulator may raise anything; it is made again
                self._restart(fault)
                continue
            self._is_lost[env_ids] = False
            self._seeds[env_ids] = seeds
            self._num_steps[env_ids] = 0
            frames = frames if self._shown is None else frames.select_cameras(self._shown)
            self._image_shape = frames.images.shape[1:]
            return frames

    def step_chunk(self, actions: np.ndarray, active: np.ndarray | None = None) -> ChunkResult:
        active = np.ones(self.num_envs, bool) if active is None else active
        if not np.isfinite(actions[active]).all():
            raise ValueError("actions of active rows hold NaN or infinity: the policy is broken, not the simulator")
        lost = active & self._is_lost
        if lost.any() and not (active & ~lost).any():
            return self._void(actions.shape[1], active)
        try:
            with simulator_code():
                result = self._env.step_chunk(actions, active & ~lost)
            limits = actions.shape[1], self.spaces.num_proprio, self.reward_limit
            check_result(result, active & ~lost, *limits, lambda row, step: self._place(row, step, actions.shape[1]))
        except RunError as error:
            self._locate(error)
            raise
        except Exception as fault:  # a simulator may raise anything; it is made again
            self._restart(fault)
            return self._void(actions.shape[1], active)
        if self._shown is not None:
            result = dataclasses.replace(result, frames=result.frames.select_cameras(self._shown))
        self._repeated.completed(int(active.sum()))
        self._num_steps += result.step_valid.sum(axis=1)
        for row in np.flatnonzero(result.infra_fault & active & ~lost).tolist():
            self._row_faults.append(f"row {row}, seed {self._seeds[row]}: {result.fault(row)}")
        return self._with_lost(result, lost) if lost.any() else result

    def _with_lost(self, result: ChunkResult, lost: np.ndarray) -> ChunkResult:
        """Return the result with an infra fault in the rows whose episode was lost with an earlier simulator."""
        fault = {"fault": self.faults[-1]}
        infos = tuple(fault if is_lost else info for info, is_lost in zip(result.infos, lost, strict=True))
        return dataclasses.replace(result, infra_fault=result.infra_fault | lost, infos=infos)

    def drain_row_faults(self) -> tuple[str, ...]:
        """Return the faults of single rows since the last call, with their seeds; the other rows went on."""
        faults = self._row_faults
        self._row_faults = []
        return tuple(faults)

    def _check_reset(self, frames: Frames, seeds: np.ndarray) -> None:
        rows = np.arange(len(seeds))
        check_frames(
            frames, rows, len(rows), self.spaces.num_proprio, lambda row, _: f" at the reset with seed {seeds[row]}"
        )

    def _place(self, row: int, step: int, num_steps: int) -> str:
        """Describe control step `step` (-1: the last) of a chunk of `num_steps` in a row."""
        number = self._num_steps[row] + (step if step >= 0 else num_steps - 1) + 1
        return f" at control step {number} of seed {self._seeds[row]}"

    def render(self, env_id: int, height: int, width: int) -> np.ndarray:
        """Return the overview. Raises NoPicture once drawing has failed: a picture for people never ends a run."""
        if not self._no_picture:
            try:
                with simulator_code():
                    picture = self._env.render(env_id, height, width)
                if picture.shape == (height, width, 3) and picture.dtype == np.uint8:
                    return picture
                self._no_picture = f"the picture is {picture.dtype} {list(picture.shape)}, not uint8 [H, W, 3]"
            except SimulatorFault as fault:  # its process has ended, and with it all episodes
                self._no_picture = str(fault)
                self._restart(fault)
            except Exception as failure:  # a simulator may raise anything
                self._no_picture = f"{type(failure).__name__}: {failure}"
                logger.warning("the simulator cannot draw an overview", exc_info=failure)
        raise NoPicture(self._no_picture)

    def expert_action(self, env_ids: np.ndarray) -> np.ndarray:
        with simulator_code():
            return self._env.expert_action(env_ids)

    def close(self) -> None:
        with empty_standard_input():
            close_or_warn(self._env.close, f"the simulator{self._of_worker}")

    def _void(self, num_steps: int, active: np.ndarray) -> ChunkResult:
        images = np.zeros((self.num_envs, *self._image_shape), np.uint8)
        proprio = np.zeros((self.num_envs, self.spaces.num_proprio), np.float32)
        frames = Frames(images, proprio, ("",) * self.num_envs)
        return ChunkResult.broken(frames, num_steps, active, self.faults[-1])

    def _restart(self, fault: Exception) -> None:
        """Make a new simulator; every row must be reset. Raises RunError at the limit."""
        self._is_lost[:] = True
        while True:
            self.faults.append(f"{type(fault).__name__}: {fault}{place_of(fault)}")
            logger.warning("simulator fault %d", len(self.faults), exc_info=fault)
            try:
                self._repeated.add(fault)
            except RunError as bug:
                self._locate(bug)
                raise bug from fault
            if len(self.faults) > self._limit:
                raise self._too_often() from fault
            close_or_warn(self._env.close, "the broken simulator")
            try:
                self._env = self._make()
                return
            except Exception as failure:  # it may need several attempts
                fault = failure

    def _locate(self, error: RunError) -> None:
        """Add the worker and the path of its log to a bug of the simulator."""
        path = self._log_path()
        if error.kind != BUG:
            return
        error.message = error.message.replace("The simulator", f"The simulator{self._of_worker}", 1)
        if path is not None:
            error.remedy = f"{error.remedy} The whole log is {path}."

    def _never_started(self) -> RunError:
        return RunError(
            f"The simulator{self._of_worker} does not start.",
            key="env.simulator",
            cause=self.faults[-1],
            remedy="This worker's log has what it printed; `python -m rlrun.doctor` looks for what its node lacks.",
            exit_status=ExitStatus.placement,  # another worker on this node would fail too
        )

    def _too_often(self) -> RunError:
        return RunError(
            f"the simulator{self._of_worker} broke {len(self.faults)} times",
            key="env.restart_limit",
            value=self._limit,
            cause=self.faults[-1],
            remedy="read the first fault in this worker's log; raise the limit only if faults are rare",
            exit_status=ExitStatus.worker_lost,
        )
