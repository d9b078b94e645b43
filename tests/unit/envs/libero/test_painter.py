"""Meshes of fast pictures have fewer triangles, and look as before."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from rlrun.config.schema import Renderer
from rlrun.envs.libero.painter import ScenePainter, with_coarse_meshes
from rlrun.envs.pictures import draw_without_display
from tests.unit.envs.libero.small_suite import needs_opengl

SIZE, RADIUS = 64, 0.1
DETAIL = 0.5 / SIZE


def ball(num_rings: int = 100, num_sides: int = 200) -> mujoco.MjModel:
    """A ball of 40,000 triangles, red on one side and blue on the other by its texture, before a camera at 0.6 m."""
    down, around = np.meshgrid(np.linspace(0, np.pi, num_rings + 1), np.linspace(0, 2 * np.pi, num_sides + 1))
    points = RADIUS * np.stack([np.sin(down) * np.cos(around), np.sin(down) * np.sin(around), np.cos(down)], -1)
    coordinates = np.stack([around / (2 * np.pi), down / np.pi], -1)
    corners = np.arange(points[..., 0].size).reshape(down.shape)
    a, b, c, d = corners[:-1, :-1], corners[1:, :-1], corners[1:, 1:], corners[:-1, 1:]
    faces = np.concatenate([np.stack([a, d, c], -1).reshape(-1, 3), np.stack([a, c, b], -1).reshape(-1, 3)])
    spec = mujoco.MjSpec()
    spec.add_mesh(
        name="ball",
        uservert=points.ravel().tolist(),
        userface=faces.ravel().tolist(),
        usertexcoord=coordinates.ravel().tolist(),
        inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL,
    )
    colours = np.zeros((8, 64, 3), np.uint8)
    colours[:, :32, 0] = colours[:, 32:, 2] = 255
    picture = {"width": 64, "height": 8, "nchannel": 3, "data": colours.ravel().tolist()}
    spec.add_texture(name="halves", type=mujoco.mjtTexture.mjTEXTURE_2D, **picture)
    spec.add_material(name="halves").textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "halves"
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="ball", material="halves", group=1)
    spec.worldbody.add_camera(name="camera", pos=[0.6, 0, 0], xyaxes=[0, 1, 0, 0, 0, 1])
    return spec.compile()


def triangles(model: mujoco.MjModel) -> np.ndarray:
    return model.mesh_face[: model.mesh_facenum[0]].copy()


def test_vertices_of_a_cube_become_one_of_them() -> None:
    model = ball()
    before = triangles(model)
    coarse = with_coarse_meshes(model, DETAIL)
    after = triangles(coarse)
    assert (triangles(model) == before).all(), "the simulated model is as it was"
    assert 500 < len(after) < len(before) / 4
    assert all(len(set(face)) == 3 for face in after.tolist())
    assert len({tuple(sorted(face)) for face in after.tolist()}) == len(after)
    used, some = model.mesh_vert[np.unique(after)], model.mesh_vert[::20]
    distances = np.linalg.norm(some[:, None] - used[None], axis=-1).min(axis=1)
    assert distances.max() < DETAIL * np.sqrt(3)


def drawn(model: mujoco.MjModel, detail: float) -> np.ndarray:
    draw_without_display(Renderer.auto)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return ScenePainter(model, detail).draw(model, data, "camera", SIZE, SIZE).astype(int)


@needs_opengl
@pytest.mark.parametrize(("detail", "is_alike"), [(DETAIL, True), (0.08, False)])
def test_pictures_of_details_below_a_pixel_are_nearly_the_same(detail: float, is_alike: bool) -> None:
    model = ball()
    fine, coarse = drawn(model, 1e-6), drawn(model, detail)
    red, blue = (fine[..., channel] > 60 for channel in (0, 2))
    assert red.sum() > 150 and blue.sum() > 150, "both halves are seen"
    differing = (np.abs(coarse - fine).max(axis=-1) > 40).mean()
    assert (differing < 0.005) == is_alike
