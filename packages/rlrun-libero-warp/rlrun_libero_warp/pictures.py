"""Cameras of all rows at once, by MuJoCo Warp's ray tracer: without reflections, shadows, highlights and sites."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import mujoco_warp
import numpy as np
import warp as wp

from rlrun.envs.libero.painter import VISIBLE_GROUPS
from rlrun_libero_warp.physics import WarpPhysics

wp.set_module_options({"enable_backward": False})


@wp.kernel
def _mirror(packed: wp.array2d[wp.uint32], width: int, pictures: wp.array3d[wp.uint8]):
    """Unpack 0x00RRGGBB, from right to left, as LIBERO's policies see."""
    row, pixel = wp.tid()
    column = pixel % width
    colour = packed[row, pixel - column + (width - 1 - column)]
    for k in range(3):
        shift = wp.uint32(16 - 8 * k)
        pictures[row, pixel, k] = wp.uint8((colour >> shift) & wp.uint32(255))


class RayTracer:
    """Draws cameras of B rows."""

    def __init__(self, model: mujoco.MjModel, physics: WarpPhysics, cameras: Sequence[str], size: int):
        """size: pixels to a side."""
        self._physics = physics
        self._shape = (physics.num_rows, len(cameras), size, size, 3)
        with wp.ScopedDevice(physics.device):
            # Highlights are left out, since OpenGL's coarse vertices miss most of them too.
            self._context = mujoco_warp.create_render_context(
                model,
                nworld=physics.num_rows,
                cam_res=(size, size),
                render_rgb=True,
                render_depth=False,
                render_seg=False,
                enabled_geom_groups=list(VISIBLE_GROUPS),
                cam_active=list(cameras),
                enable_specular=False,
            )
            lights = physics.model.light_diffuse
            lights.assign(lights.numpy() * dimming(model))
            self._pictures = wp.zeros((physics.num_rows, len(cameras) * size * size, 3), dtype=wp.uint8)

    @property
    def empty(self) -> np.ndarray:
        """uint8 [B, N, H, W, 3]: zeros."""
        return np.zeros(self._shape, np.uint8)

    def draw(self) -> np.ndarray:
        """Return uint8 [B, N, H, W, 3]: what the cameras see in the last step of each row, mirrored."""
        with wp.ScopedDevice(self._physics.device):
            mujoco_warp.refit_bvh(self._physics.model, self._physics.data, self._context)
            mujoco_warp.render(self._physics.model, self._physics.data, self._context)
            wp.launch(
                _mirror,
                dim=self._pictures.shape[:2],
                inputs=[self._context.rgb_data, self._shape[3]],
                outputs=[self._pictures],
            )
        return self._pictures.numpy().reshape(self._shape).copy()  # of the CPU's device it is the memory itself


def dimming(model: mujoco.MjModel) -> float:
    """Return the factor for a scene's lights with which the headlight and the sun together do not overexpose.

    OpenGL limits the light on a surface to 1 before it takes the surface's texture; the ray tracer only after it.
    """
    head = model.vis.headlight
    left = 1.0 - float(head.ambient.max() + head.diffuse.max()) * bool(head.active)
    suns = model.light_active.astype(bool) & (model.light_type == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
    bright = float(model.light_diffuse[suns].max(1, initial=0.0).sum())
    return min(1.0, left / bright) if bright else 1.0
