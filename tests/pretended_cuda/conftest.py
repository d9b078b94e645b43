"""A process with a pretended CUDA device: torch of this one must not get it, since other tests run here as well."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from tests.pretended_cuda import device

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def on_cuda() -> Iterator[Run]:
    """Call with a function of a module and its arguments: it runs on the pretended device; returns what it returns."""
    yield from _process(_with_values)


@pytest.fixture(scope="module")
def on_empty_cuda() -> Iterator[Run]:
    """Call in the same way: the device has no tensors but fake ones, which have no values."""
    yield from _process(_without_values)


def _process(start: Callable[[], None]) -> Iterator[Run]:
    if device.compiler() is None:
        pytest.skip("no C++ compiler, which a pretended CUDA device needs: apt-get install g++")
    device.library()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), start) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result(timeout=280)


def _with_values() -> None:
    device.load()
    from tests.pretended_cuda import runtime

    runtime.install()


def _without_values() -> None:
    device.load()
    import torch

    torch.cuda.current_device, torch.cuda.is_initialized = lambda: 0, lambda: True
