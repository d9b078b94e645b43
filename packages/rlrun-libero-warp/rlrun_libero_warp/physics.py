"""MuJoCo Warp: B copies of one scene on one device, stepped together, with masked resets and kept states.

On a GPU a control step is one CUDA graph. A row that must stand still is copied away before the step and back after it,
since Warp steps all copies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mujoco
import mujoco_warp
import numpy as np
import warp as wp

from rlrun_libero_warp.controller import WarpController

log = logging.getLogger(__name__)

wp.set_module_options({"enable_backward": False})

# what later steps depend on, and what is read of the last step
_STATE = ("time", "qpos", "qvel", "qacc_warmstart", "ctrl")
_SEEN = (
    *("xpos", "xquat", "site_xpos", "site_xmat", "geom_xpos", "geom_xmat"),
    *("cam_xpos", "cam_xmat", "light_xpos", "light_xdir"),
)
_LARGEST = mujoco.mjMAXVAL  # positions and velocities beyond it count as diverged, as in MuJoCo
_FULL = int(
    mujoco_warp.OverflowType.NEFC
    | mujoco_warp.OverflowType.NJMAX_NNZ
    | mujoco_warp.OverflowType.BROADPHASE
    | mujoco_warp.OverflowType.NARROWPHASE
    | mujoco_warp.OverflowType.CCD
)
LEAST_ROOM = 512  # contacts and constraints of a row: pairs of near shapes need room for contacts, too
# starts, and physics steps from each, in which contacts are counted
_LOOKED_AT = 8
_LOOKED_STEPS = 100
# conditions of a row
FINE = 0
DIVERGED = 1
OVERFLOWED = 2


@wp.kernel
def _copy_rows(
    source: wp.array2d[float], source_rows: wp.array[int], target: wp.array2d[float], target_rows: wp.array[int]
):
    i, j = wp.tid()
    if source_rows[i] >= 0 and target_rows[i] >= 0:
        target[target_rows[i], j] = source[source_rows[i], j]


@wp.kernel
def _judge(
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    overflow: wp.array[int],
    largest: float,
    full: int,
    condition: wp.array[int],
):
    row = wp.tid()
    found = FINE
    if (overflow[row] & full) != 0:
        found = OVERFLOWED
    for i in range(qpos.shape[1]):
        if not (wp.abs(qpos[row, i]) < largest):  # also true of NaN
            found = DIVERGED
    for i in range(qvel.shape[1]):
        if not (wp.abs(qvel[row, i]) < largest):
            found = DIVERGED
    condition[row] = found


@dataclass(frozen=True)
class Room:
    """Places for contacts and constraints of a row. Example: Room(num_contacts=512, num_constraints=1242)."""

    num_contacts: int
    num_constraints: int


def room_for(model: mujoco.MjModel, starts: np.ndarray) -> Room:
    """Return twice what some of the starts need while things fall, without control. starts: [S, 1 + nq + nv]."""
    data = mujoco.MjData(model)
    most = np.zeros(2, int)
    for start in starts[:: max(1, len(starts) // _LOOKED_AT)]:
        mujoco.mj_resetData(model, data)
        data.qpos[:] = start[1 : 1 + model.nq]
        data.qvel[:] = start[1 + model.nq :]
        for _ in range(_LOOKED_STEPS):
            mujoco.mj_step(model, data)
            most = np.maximum(most, (data.ncon, data.nefc))
    contacts, constraints = np.maximum(2 * most, LEAST_ROOM).tolist()
    return Room(contacts, constraints)


class KeptRows:
    """Copies of rows: float arrays [P, …] beside live ones [B, …] on one device."""

    def __init__(self, live: Sequence[wp.array], num_places: int):
        self._live = list(live)
        self._kept = [wp.zeros((num_places, one.shape[1]), dtype=float) for one in live]

    def keep(self, rows: wp.array, places: wp.array) -> None:
        """Copy rows, int [R], to places, int [R]; pairs with a negative number are left out."""
        self._copy(self._live, rows, self._kept, places)

    def bring(self, places: wp.array, rows: wp.array) -> None:
        """Copy what was kept back to rows."""
        self._copy(self._kept, places, self._live, rows)

    def _copy(self, sources: list[wp.array], source_rows: wp.array, targets: list[wp.array], rows: wp.array) -> None:
        for source, target in zip(sources, targets, strict=True):
            inputs = [source, source_rows, target, rows]
            wp.launch(_copy_rows, dim=(len(rows), target.shape[1]), inputs=inputs)


class WarpPhysics:
    """The scene's physics and controller for B rows."""

    def __init__(
        self,
        model: mujoco.MjModel,
        make_controller: Callable[[], WarpController],
        starts: np.ndarray,
        num_rows: int,
        num_substeps: int,
        device: Any,
    ):
        """starts: [S, 1 + nq + nv], time, positions and velocities; a row's start is named by its number."""
        self.device = device
        self.num_rows = num_rows
        self._num_substeps = num_substeps
        room = room_for(model, starts)
        with wp.ScopedDevice(device):
            with _matrices_as_warp_likes(model):
                self.model = mujoco_warp.put_model(model)
                self.data = mujoco_warp.make_data(
                    model, num_rows, nconmax=room.num_contacts, njmax=room.num_constraints
                )
            self.model.opt.warn_overflow = 0  # rows report it in `condition`
            if device.is_cuda:  # a row's numbers must not depend on the order in which threads add
                self.model.opt.deterministic = int(mujoco_warp.DeterminismType.ALL)
            self.controller = make_controller()
            self.actions = wp.zeros((num_rows, 7), dtype=float)
            self.condition = wp.zeros(num_rows, dtype=int)
            self._frozen = wp.zeros(num_rows, dtype=int)  # its own number in rows that stand still, else -1
            state = [_as_rows(getattr(self.data, name)) for name in (*_STATE, *_SEEN)]
            state += [_as_rows(one) for one in self.controller.state]
            self._held = KeptRows(state, num_rows)
            self._settled = KeptRows(state, len(starts))
            self._starts = [wp.array(part, dtype=float) for part in _parts(starts, model.nq)]
        self._graph: Any = None
        self._was_stepped = False

    # --- starts --------------------------------------------------------------------------------------------------

    def place(self, rows: np.ndarray, starts: np.ndarray) -> None:
        """Put rows, int [R], into starts, int [R], as they were published; the other rows stay as they are."""
        mask = np.zeros(self.num_rows, bool)
        mask[rows] = True
        with wp.ScopedDevice(self.device):
            self._freeze(mask)
            mujoco_warp.reset_data(self.model, self.data, reset=wp.array(mask, dtype=bool))
            to = wp.array(rows, dtype=int)
            of = wp.array(starts, dtype=int)
            for name, start in zip(("time", "qpos", "qvel"), self._starts, strict=True):
                target = _as_rows(getattr(self.data, name))
                wp.launch(_copy_rows, dim=(len(rows), target.shape[1]), inputs=[start, of, target, to])
            self.controller.reset(rows)
            self._held.keep(self._frozen, self._frozen)
            mujoco_warp.forward(self.model, self.data)
            self._held.bring(self._frozen, self._frozen)

    def keep(self, rows: np.ndarray, starts: np.ndarray) -> None:
        """Keep what rows are in now as the states in which episodes of these starts begin."""
        with wp.ScopedDevice(self.device):
            self._settled.keep(wp.array(rows, dtype=int), wp.array(starts, dtype=int))

    def begin(self, rows: np.ndarray, starts: np.ndarray) -> None:
        """Put rows into the kept states of starts; the other rows stay as they are."""
        mask = np.zeros(self.num_rows, bool)
        mask[rows] = True
        with wp.ScopedDevice(self.device):
            mujoco_warp.reset_data(self.model, self.data, reset=wp.array(mask, dtype=bool))
            self._settled.bring(wp.array(starts, dtype=int), wp.array(rows, dtype=int))

    # --- steps ---------------------------------------------------------------------------------------------------

    def control_step(self, actions: np.ndarray, running: np.ndarray, then: Callable[[], None]) -> None:
        """Run one control step of the rows that run, and `then` before the others are put back.

        actions: [B, 7], -1..1; running: bool [B]; then: launches on the same device, always the same ones. Positions
        and contacts are then those of the last physics step's beginning, as in robosuite.
        """
        with wp.ScopedDevice(self.device):
            self._freeze(running)
            self.actions.assign(np.ascontiguousarray(actions, np.float32))
            if self._graph is not None:
                wp.capture_launch(self._graph)
            elif self.device.is_cuda and self._was_stepped:  # the first one has loaded all modules
                with wp.ScopedCapture() as capture:
                    self._step(then)
                self._graph = capture.graph
                wp.capture_launch(self._graph)
            else:
                self._step(then)
                self._was_stepped = True

    def _freeze(self, running: np.ndarray) -> None:
        self._frozen.assign(np.where(running, -1, np.arange(self.num_rows)).astype(np.int32))

    def _step(self, then: Callable[[], None]) -> None:
        self._held.keep(self._frozen, self._frozen)
        for k in range(self._num_substeps):
            mujoco_warp.step1(self.model, self.data)
            self.controller.control(mujoco_warp, self.model, self.data, self._frozen, self.actions, is_new=k == 0)
            mujoco_warp.step2(self.model, self.data)
        data = self.data
        wp.launch(
            _judge,
            dim=self.num_rows,
            inputs=[data.qpos, data.qvel, data.overflow, _LARGEST, _FULL],
            outputs=[self.condition],
        )
        then()
        self._held.bring(self._frozen, self._frozen)


@contextmanager
def _matrices_as_warp_likes(model: mujoco.MjModel) -> Iterator[None]:
    """Let Warp choose between dense and sparse matrices; dense ones, which MuJoCo 4.0.0 needs, end at 60 dofs there."""
    before = model.opt.jacobian
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_AUTO
    try:
        yield
    finally:
        model.opt.jacobian = before


def _as_rows(array: wp.array) -> wp.array:
    """Return the memory of an array [B, …] of vectors or matrices as float [B, …]; the caller keeps the array."""
    count = array.capacity // array.shape[0] // 4
    return wp.array(ptr=array.ptr, dtype=float, shape=(array.shape[0], count), device=array.device, copy=False)


def _parts(starts: np.ndarray, num_positions: int) -> list[np.ndarray]:
    """Return time, positions and velocities of starts as they are."""
    return [starts[:, :1], starts[:, 1 : 1 + num_positions], starts[:, 1 + num_positions :]]
