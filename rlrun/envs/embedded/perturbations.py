"""Perturbed embedded worlds, in which `rlrun certify` tests a policy that was trained in the plain one.

The task stays solvable: the scripted expert solves it in each of them (tests/unit/envs/embedded/test_perturbations.py).
"""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np

from rlrun.envs.embedded.spec import Perturbation

POSE_SPREAD = 1.5  # of start poses, as a multiple of the range of training
WORDINGS = {
    "turning_on_radio": "switch the radio on",
    "picking_up_trash": "throw the soda cans into the bin",
}
_SHIFT = np.array([0.02, -0.02, 0.02])  # m, of each camera in the frame of the body that carries it
_TURN = np.deg2rad(4.0)  # of each camera about its axis of sight
_WIDENED = 1.1  # field of view
_DIMMED = 0.55  # share of the light that is left
_COLOURS = {"floor": (0.30, 0.22, 0.18), "wall": (0.55, 0.66, 0.72), "table": (0.75, 0.72, 0.68)}


def perturb_model(model: mujoco.MjModel, perturbation: Perturbation) -> None:
    """Change cameras, lights or colours of a compiled model."""
    changes: dict[Perturbation, Callable[[mujoco.MjModel], None]] = {
        Perturbation.camera: _move_cameras,
        Perturbation.light: _dim_lights,
        Perturbation.texture: _paint,
    }
    if perturbation in changes:
        changes[perturbation](model)


def _move_cameras(model: mujoco.MjModel) -> None:
    turned = np.zeros(4)
    about_sight = np.array([np.cos(_TURN / 2), 0.0, 0.0, np.sin(_TURN / 2)])
    for camera in range(model.ncam):
        model.cam_pos[camera] += _SHIFT
        mujoco.mju_mulQuat(turned, model.cam_quat[camera], about_sight)
        model.cam_quat[camera] = turned
        model.cam_fovy[camera] *= _WIDENED


def _dim_lights(model: mujoco.MjModel) -> None:
    """Leave less light, and let it come from the side."""
    model.vis.headlight.ambient[:] *= _DIMMED
    model.vis.headlight.diffuse[:] *= _DIMMED
    model.light_dir[:] = np.array([0.6, 0.5, -0.63])


def _paint(model: mujoco.MjModel) -> None:
    """Give the floor, the walls and the table other colours."""
    for geom in range(model.ngeom):
        body = model.body(model.geom_bodyid[geom]).name
        name = model.geom(geom).name or body
        for part, colour in _COLOURS.items():
            if name.startswith(part) or body == part:
                model.geom_rgba[geom, :3] = colour
