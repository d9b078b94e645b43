"""Kit's folders on a node, its log, and the known lines of it: harmless ones, and causes of failed rendering.

A line of Kit is `<time> [<level>] [<channel>] <text>`. Causes are looked for in errors of their channels, and in
exceptions of Python: words such as "not found" and "not supported" occur in hundreds of warnings that mean nothing.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rlrun.pipe.output import KnownLine

_DRIVER = "nvidia-smi must show the GPU inside this container or job; install driver 570 or later"
_VULKAN = (
    "install libvulkan1 and the driver's graphics part (in containers NVIDIA_DRIVER_CAPABILITIES=graphics,compute,"
    "utility), so that /usr/share/vulkan/icd.d or /etc/vulkan/icd.d has nvidia_icd.json; check: vulkaninfo --summary"
)
_MEMORY = "put fewer simulators on it (placement.roles.env.workers_per_accelerator) or fewer envs into each"
_ORDINAL = "compare OMNIGIBSON_GPU_ID with `vulkaninfo --summary`; placement.roles.env must name what this node has"
_GRAPHICS = (
    r"(?:carb\.graphics-vulkan|gpu\.foundation|omni\.gpu_foundation_factory|omni\.kit\.(?:imgui_)?renderer)\.plugin"
)
_RENDERING = r"(?:carb\.graphics-vulkan|gpu\.foundation|carb\.scenerenderer-rtx|rtx\.\w+)\.plugin"
_CUDA = r"(?:carb\.cudainterop|gpu\.foundation|omni\.physx|isaacsim\.sensors\.rtx)\.plugin"
VARIABLE = "OMNIGIBSON_APPDATA_PATH"
LOOK_S = 0.5  # interval between attempts to start
LOG_BYTES = 4_000_000  # end of a log file that is read
_held: list[TextIO] = []  # locks of this process's folders: they are free when it has ended, however it ends


def _error(channel: str, text: str) -> str:
    """Return the pattern of an error of these channels. Kit's console may leave the level out."""
    return rf"(?:^|\[(?:Error|Fatal)\] )\[{channel}\] .*(?:{text})"


def _warning(channel: str, text: str) -> str:
    return rf"\[Warning\] \[{channel}\] .*(?:{text})"


def _exception(text: str) -> str:
    """Return the pattern of the line with which a traceback of Python ends."""
    return rf"^(?:\w+\.)*\w*(?:Error|Exception): .*(?:{text})"


_HARMLESS = (
    KnownLine(
        r"\[carb\.windowing-glfw\.plugin\]|Failed to startup plugin carb\.windowing-glfw\.plugin",
        "there is no display, and a headless simulator needs none",
    ),
    KnownLine(
        r"IAppWindow::startup failed|Failed to acquire IWindowing interface|Failed to set app window for default",
        "part of a window that is not shown",
    ),
    KnownLine(
        r"SdRenderVarPtr missing valid input renderVar",
        "a camera was read before its first frame; frames are checked and rendered again, and black ones refused",
    ),
    KnownLine(
        r"Disabling key-value database because another kit process is locking it",
        "two simulators share a folder of caches, of which one can do without",
    ),
    KnownLine(_warning(r"omni\.hydra\.scene_delegate\.plugin", ""), "Isaac's own noise about the stage"),
    KnownLine(_warning(r"omni\.kit\.manipulator\.prim\.model", ""), "part of a window that is not shown"),
    KnownLine(r"\[Warning\].*(?i:is deprecated|deprecation)|DeprecationWarning", "an older name in Isaac's extensions"),
)
_GPU = (
    KnownLine(
        "|".join(
            [
                _error(r"[\w.-]+", r"lib(?:Xext|X11|Xt|SM|ICE|GLU|GL|EGL|Xrandr)\.so\S*: cannot open shared object"),
                _exception(r"lib(?:Xext|X11|Xt|SM|ICE|GLU|GL|EGL|Xrandr)\.so\S*: cannot open shared object"),
            ]
        ),
        "a system library that Kit loads is missing",
        "apt-get install libxext6 libx11-6 libxt6 libsm6 libice6 libglu1-mesa libgl1 libegl1 libxrandr2",
    ),
    KnownLine(
        _error(
            _GRAPHICS,
            r"ERROR_INCOMPATIBLE_DRIVER|ERROR_INITIALIZATION_FAILED|vkCreateInstance failed|createInstance failed|"
            r"libvulkan\.so\.1: cannot open",
        )
        + "|"
        + _exception(r"libvulkan\.so\.1: cannot open"),
        "the Vulkan driver is missing",
        _VULKAN,
    ),
    KnownLine(
        _error(_GRAPHICS, r"(?i:driver version|installed driver|graphics driver)\b.*(?i:unsupported|too old|minimum)"),
        "the NVIDIA driver is too old",
        _DRIVER,
    ),
    KnownLine(
        _error(
            _GRAPHICS,
            r"No device could be created|Failed to create (?:any GPU|GPU foundation) devices|"
            r"GPU Foundation is not initialized|invalid device attached to the default window",
        )
        + "|"
        + _error(r"omni\.physx\.plugin", "no suitable CUDA GPU was found"),
        "Kit found no GPU that it can render with",
        f"{_VULKAN}; A100 and H100 cannot render",
    ),
    KnownLine(
        _error(r"omni\.usd", "HydraEngine rtx failed creating scene renderer"),
        "the GPU has no RT cores, or is the wrong one",
        "simulate on RTX GPUs (4090, L40S, A6000): A100 and H100 have none; compare OMNIGIBSON_GPU_ID",
    ),
    KnownLine(
        "|".join(
            [
                _error(_GRAPHICS, r"(?i:active GPU index|invalid GPU index)|Failed to acquire .*physical device"),
                _error(
                    r"omni\.physx\.plugin",
                    "primary context of requested CUDA device|create (?:Px)?Cuda ?Context ?Manager",
                ),
                _warning(r"omni\.graph\.core\.plugin", "unable to get a valid CUDA device id from the renderer"),
            ]
        ),
        "the renderer and CUDA have different GPUs, or the wanted one is not there",
        _ORDINAL,
    ),
)
_RESOURCES = (
    KnownLine(
        "|".join(
            [
                _error(_RENDERING, r"ERROR_OUT_OF_DEVICE_MEMORY|vkAllocateMemory failed|Unable to allocate buffer"),
                _error(_RENDERING, r"Buffer creation failed|Failed to create buffers"),
                _error(_CUDA, "cudaErrorMemoryAllocation"),
                r"^Pxg\w+ fail to allocate memory \d+ bytes",
                r"^(?:torch\.)?(?:cuda\.)?OutOfMemoryError: ",
                _exception("CUDA out of memory"),
            ]
        ),
        "the GPU's memory is full",
        _MEMORY,
    ),
    KnownLine(
        _error(
            _RENDERING, r"Unable to allocate descriptor sets|DescriptorSet for pool|Failed to allocate ParameterBlock"
        ),
        "the simulator has more cameras than the renderer has descriptor sets",
        "put fewer envs into each simulator (about 8 with three cameras are possible), or fewer cameras",
    ),
    KnownLine(
        _error(_GRAPHICS, "ERROR_OUT_OF_HOST_MEMORY"),
        "the driver can open no further files, or has no memory",
        "raise `ulimit -n` to 65536 on this node; if the line shows fewer open files than the limit, update the driver",
    ),
    KnownLine(
        _error(_RENDERING, r"ERROR_DEVICE_LOST|GPU crash|submitToQueueCommon failed|vkWaitForFences failed")
        + "|"
        + _error(_CUDA, r"cudaErrorIllegalAddress|external (?:memory|semaphore)"),
        "the GPU crashed: its driver, its memory, or a fault of Isaac Sim",
        f"look for earlier errors on memory, and for Xid in `dmesg`; try another driver branch, and {_MEMORY}",
    ),
    KnownLine(
        _error(_RENDERING, r"Failed to allocate \d+x\d+ \w+ resource|Texture creation failed")
        + "|"
        + _error(r"omni\.usd", "failed to end the compute graph"),
        "a picture could not be rendered; an error above it tells why, or memory was short",
        _MEMORY,
    ),
)
_FILES = (
    KnownLine(
        _exception(r"omnigibson\.key|(?i:encryption key|failed to decrypt)"),
        "the key of the BEHAVIOR data set is missing",
        "accept its licence and download it with the data set: docs/omnigibson.md",
    ),
    KnownLine(
        _exception(r"(?i:data path|dataset|scene|asset|config file).*(?i:does not exist|not found|no such file)")
        + "|"
        + _exception(r"(?i:no such file|could not find).*(?:scenes|objects|challenge-task-instances)/"),
        "a scene, asset or instance of the BEHAVIOR data set is missing",
        "set OMNIGIBSON_DATA_PATH in placement.nodes.<group>.environment to the folder with the data set",
    ),
    KnownLine(
        r"Do you accept the EULA|(?i:license(?: agreement)?(?: \(EULA\))? must be accepted)",
        "NVIDIA's licence agreement has not been accepted",
        "read it, then set OMNI_KIT_ACCEPT_EULA: 'YES' in placement.nodes.<group>.environment",
    ),
)
KNOWN_LINES = (*_HARMLESS, *_GPU, *_RESOURCES, *_FILES)


# --- folders -------------------------------------------------------------------------------------


def application_root() -> Path:
    """Return this node's folder for all simulators; home directories may be shared by nodes."""
    chosen = os.environ.get(VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(chosen) if chosen else cache / "rlrun" / "omnigibson") / socket.gethostname()


def take_folder(root: Path) -> Path:
    """Return a folder that no other simulator uses, and keep it until this process ends.

    Later processes take it again, so that compiled shaders are found.
    """
    root.mkdir(parents=True, exist_ok=True)
    number = 0
    while (lock := _locked(root / f"simulator_{number}.lock")) is None:
        number += 1
    lock.truncate(0)
    lock.write(str(os.getpgrp()))  # by which the env worker finds the log: it knows the process group
    lock.flush()
    _held.append(lock)
    return root / f"simulator_{number}"


@contextmanager
def turn_to_start(root: Path, progress: Callable[[], None]) -> Iterator[None]:
    """Wait until no other simulator of this node starts. Each start copies files into Isaac's own folders."""
    while (lock := _locked(root / "start.lock")) is None:
        progress()
        time.sleep(LOOK_S)
    try:
        yield
    finally:
        lock.close()


def log_of(process_group: int) -> list[str]:
    """Return the last lines of Kit's log file of a simulator that ran in this process group; [] if it wrote none."""
    for lock in application_root().glob("simulator_*.lock"):
        if lock.read_text(encoding="utf-8").strip() != str(process_group):
            continue
        since = lock.stat().st_mtime
        logs = (file for file in lock.with_suffix("").glob("local/**/kit_*.log") if file.stat().st_mtime >= since)
        newest = max(logs, key=lambda file: file.stat().st_mtime, default=None)
        if newest is not None:
            with newest.open("rb") as file:
                file.seek(max(0, newest.stat().st_size - LOG_BYTES))
                return file.read().decode(errors="replace").splitlines()
    return []


def _locked(path: Path) -> TextIO | None:
    """Return the open and locked file, or None if another process holds it."""
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
