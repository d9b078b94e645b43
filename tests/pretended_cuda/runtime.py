"""What torch asks of CUDA beside operators: `torch.cuda`, streams, `torch.tensor`, the data of parameters."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from tests.pretended_cuda.events import EVENTS, Kind
from tests.pretended_cuda.tensor import CUDA, PretendedCuda, PretendedTensor

CARD_BYTES = 80 << 30
NAME = "pretended"


class Event:
    """Work is done when it is called, so that events are points in time."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._time = time.perf_counter()

    def record(self, *_: Any) -> None:
        self._time = time.perf_counter()

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds."""
        return 1000 * (later._time - self._time)

    def wait(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        EVENTS.add(Kind.wait, "cuda.Event.synchronize")

    def query(self) -> bool:
        return True


class Stream:
    """The order of calls."""

    device = CUDA

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, *_: Any) -> None:
        pass

    def wait_event(self, *_: Any) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def synchronize(self) -> None:
        EVENTS.add(Kind.wait, "cuda.Stream.synchronize")

    def query(self) -> bool:
        return True


class Properties:
    """Of an A100."""

    name, total_memory, major, minor, multi_processor_count = NAME, CARD_BYTES, 8, 0, 108


def install() -> None:
    """Make torch of this process believe in the device, and enter the mode in every thread."""
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": NAME,
        "get_device_capability": (8, 0),
        "get_device_properties": Properties,
        "mem_get_info": (CARD_BYTES, CARD_BYTES),
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "get_sync_debug_mode": 0,
    }
    nothing = (
        "init empty_cache set_device manual_seed manual_seed_all set_rng_state reset_peak_memory_stats ipc_collect "
        "set_sync_debug_mode set_per_process_memory_fraction"
    )
    answers |= dict.fromkeys(nothing.split())
    for name, answer in answers.items():
        setattr(torch.cuda, name, _answering(answer))
    torch.cuda.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)
    torch.cuda.synchronize = lambda *_: EVENTS.add(Kind.wait, "cuda.synchronize")
    torch.cuda.Stream, torch.cuda.Event = Stream, Event
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *_: Stream()
    torch.cuda.stream = torch.cuda.device = lambda *_: contextlib.nullcontext()
    torch.inference_mode = torch.no_grad  # its tensors cannot be of a subclass
    torch.tensor, torch.as_tensor = _moving(torch.tensor), _moving(torch.as_tensor)
    torch.Tensor.data = property(_data, _set_data)
    _enter_in_threads()


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _moving(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """torch fills memory of the device itself; here the CPU's tensor is copied."""

    @functools.wraps(make)
    def made(data: Any, *args: Any, device: Any = None, **options: Any) -> torch.Tensor:
        if isinstance(data, torch.Tensor) or device is None or torch.device(device).type != "cuda":
            return make(data, *args, device=device, **options)
        return make(data, *args, **options).to("cuda")

    return made


_real_data = torch.Tensor.data


def _data(tensor: torch.Tensor) -> torch.Tensor:
    return _real_data.__get__(tensor)


def _set_data(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """A parameter that moves to the device becomes another class of tensor, which its setter refuses."""
    if isinstance(tensor, PretendedTensor) or isinstance(new, PretendedTensor):
        is_parameter, requires_grad = isinstance(tensor, torch.nn.Parameter), tensor.requires_grad
        new = new.detach()
        torch.utils.swap_tensors(tensor, torch.nn.Parameter(new, requires_grad) if is_parameter else new)
    else:
        _real_data.__set__(tensor, new)


def _enter_in_threads() -> None:
    run = threading.Thread.run

    def run_on_device(thread: threading.Thread) -> None:
        with PretendedCuda():
            run(thread)

    threading.Thread.run = run_on_device
    mode = PretendedCuda()
    mode.__enter__()
