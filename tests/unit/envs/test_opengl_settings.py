"""Variables of the user that decide OpenGL: obeyed where MuJoCo takes them, else taken away with a warning."""

from __future__ import annotations

import logging
import os

import pytest

from rlrun.config.schema import Renderer
from rlrun.envs import pictures
from rlrun.envs.opengl import drop_other_platform, drop_unusable
from rlrun.envs.pictures import draw_without_display

NAMES = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "SDL_VIDEODRIVER", "PYGAME_HIDE_SUPPORT_PROMPT", "LP_NUM_THREADS")


@pytest.mark.parametrize(
    ("value", "is_kept"),
    [("cgl", False), ("wgl", False), ("nvidia", False), (" EGL", True), ("glfw", True), ("disabled", True), ("", True)],
)
def test_a_value_that_mujoco_does_not_take_is_taken_away(
    value: str, is_kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"MUJOCO_GL": value}
    with caplog.at_level(logging.WARNING):
        drop_unusable(environment)
    assert ("MUJOCO_GL" in environment) is is_kept
    assert (f"MUJOCO_GL={value} is taken away" in caplog.text) is not is_kept


def test_a_platform_with_a_display_is_taken_away() -> None:
    for value, is_kept in {"glx": False, "egl": True, "osmesa": True}.items():
        environment = {"PYOPENGL_PLATFORM": value}
        drop_other_platform(environment)
        assert ("PYOPENGL_PLATFORM" in environment) is is_kept


@pytest.mark.parametrize(
    ("wanted", "given", "chosen"),
    [
        (Renderer.auto, {}, "egl"),
        (Renderer.auto, {"MUJOCO_GL": "glfw"}, "glfw"),
        (Renderer.auto, {"MUJOCO_GL": "cgl"}, "egl"),
        (Renderer.auto, {"PYOPENGL_PLATFORM": "osmesa"}, "osmesa"),
        (Renderer.osmesa, {"MUJOCO_GL": "egl"}, "osmesa"),
    ],
)
def test_the_key_decides_then_the_variable_then_what_is_there(
    wanted: Renderer, given: dict[str, str], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, given.get(name, ""))  # so that what the call sets is undone
        if name not in given:
            monkeypatch.delenv(name)
    monkeypatch.setattr(pictures, "_has_egl", lambda: True)
    draw_without_display(wanted)
    assert os.environ["MUJOCO_GL"] == chosen
