"""The plan's MUJOCO_EGL_DEVICE_ID against what EGL lists."""

from __future__ import annotations

import os

import pytest

from rlrun.envs import opengl
from rlrun.envs.opengl import VARIABLE, drop_unlisted_device, num_egl_devices


@pytest.mark.parametrize(("listed", "wanted", "is_kept"), [(1, "0", True), (1, "3", False), (4, "3", True)])
def test_a_device_that_egl_does_not_list_is_not_asked_for(monkeypatch, listed, wanted, is_kept) -> None:
    monkeypatch.setenv(VARIABLE, wanted)
    monkeypatch.setattr(opengl, "num_egl_devices", lambda: listed)
    drop_unlisted_device()
    assert (VARIABLE in os.environ) is is_kept


def test_where_egl_cannot_tell_the_plan_counts(monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "3")
    monkeypatch.setattr(opengl, "_LIBRARY", "libNoSuchEGL.so.1")
    assert num_egl_devices() is None
    drop_unlisted_device()
    assert os.environ[VARIABLE] == "3"


def test_the_devices_of_this_machine_are_counted() -> None:
    count = num_egl_devices()
    if count is None:
        pytest.skip("EGL is not installed")
    assert count >= 1
