"""The plan's MUJOCO_EGL_DEVICE_ID against what EGL lists."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

import pytest

from rlrun.envs import opengl
from rlrun.envs.opengl import (
    VARIABLE,
    VISIBLE,
    drop_unlisted_device,
    num_egl_devices,
    prepare_process,
    prepare_robosuite,
)


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


class FakeEgl:
    """libEGL with devices whose CUDA numbers are given, None for Mesa's; it has no attributes if it is old."""

    def __init__(self, numbers: list[int | None], is_old: bool = False):
        self._numbers = numbers
        pointer = ctypes.POINTER(ctypes.c_int)
        listing = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), pointer)
        value = ctypes.POINTER(ctypes.c_ssize_t)
        asking = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, value)
        self._kept: dict[str, Any] = {"eglQueryDevicesEXT": listing(self._list)}
        if not is_old:
            self._kept["eglQueryDeviceAttribEXT"] = asking(self._ask)
        self.eglGetProcAddress = lambda name: self._address(name.decode())

    def _address(self, name: str) -> int | None:
        return ctypes.cast(self._kept[name], ctypes.c_void_p).value if name in self._kept else None

    def _list(self, room: int, handles: Any, count: Any) -> int:
        count[0] = min(room, len(self._numbers)) if handles else len(self._numbers)
        for place in range(count[0] if handles else 0):
            handles[place] = 1000 + place
        return 1

    def _ask(self, device: int, attribute: int, value: Any) -> int:
        number = self._numbers[device - 1000]
        if attribute != 0x323A or number is None:
            return 0
        value[0] = number
        return 1


def prepared(monkeypatch: pytest.MonkeyPatch, egl: FakeEgl, mujoco: str, visible: str, asked: str) -> str | None:
    monkeypatch.setattr(opengl.ctypes, "CDLL", lambda _: egl)
    monkeypatch.setattr(opengl, "metadata", SimpleNamespace(version=lambda _: mujoco, PackageNotFoundError=ImportError))
    monkeypatch.setenv(VISIBLE, visible)
    monkeypatch.setenv(VARIABLE, asked)
    prepare_process()
    return os.environ.get(VARIABLE)


OTHER_ORDER = [2, 0, 1, 3, None]  # CUDA's numbers of EGL's devices; the last one is Mesa's


@pytest.mark.parametrize(
    ("numbers", "mujoco", "visible", "asked", "place"),
    [
        (OTHER_ORDER, "3.3.7", "2", "2", "0"),
        (OTHER_ORDER, "3.3.7", "0", "0", "1"),
        (OTHER_ORDER, "4.0.0", "2", "2", "2"),  # which looks for CUDA's number itself
        (OTHER_ORDER, "3.3.7", "1,2", "1", "2"),
        (OTHER_ORDER, "3.3.7", "2", "4", "4"),  # somebody's own
        ([0], "3.3.7", "3", "3", "0"),  # a driver that hides the other cards, and counts anew
        ([3], "3.3.7", "3", "3", "0"),  # and one that keeps the number
        ([None], "3.3.7", "2", "2", None),  # no card: MuJoCo takes what there is
        ([0, 0, 1], "3.3.7", "0", "0", "0"),  # which of both, EGL does not say
    ],
)
def test_mujoco_3_gets_the_place_of_the_card_in_egls_own_order(
    monkeypatch: pytest.MonkeyPatch,
    numbers: list[int | None],
    mujoco: str,
    visible: str,
    asked: str,
    place: str | None,
) -> None:
    assert prepared(monkeypatch, FakeEgl(numbers), mujoco, visible, asked) == place
    if asked == visible and VARIABLE in os.environ:
        prepare_process()  # once more changes nothing
        assert os.environ[VARIABLE] == place


def test_an_egl_that_tells_no_numbers_leaves_the_plan_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepared(monkeypatch, FakeEgl(OTHER_ORDER, is_old=True), "3.3.7", "2", "2") == "2"


@pytest.mark.parametrize(
    ("mujoco", "card", "place", "visible"),
    [("3.3.7", "2", "0", None), ("3.3.7", "3", "3", "3"), ("4.0.0", "2", "2", "2")],
)
def test_robosuite_meets_no_list_of_cards_that_lacks_the_place(
    monkeypatch: pytest.MonkeyPatch, mujoco: str, card: str, place: str, visible: str | None
) -> None:
    """It draws by MuJoCo here, but does not let itself be imported otherwise."""
    prepared(monkeypatch, FakeEgl(OTHER_ORDER), mujoco, card, card)
    prepare_robosuite()
    assert os.environ[VARIABLE] == place
    assert os.environ.get(VISIBLE) == visible
