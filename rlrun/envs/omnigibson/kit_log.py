"""Known lines of Isaac Sim's log: harmless ones, and those that explain why rendering fails.

A line of Kit is `<time> [<level>] [<channel>] <text>`. Causes are looked for in errors of their channels, and in
exceptions of Python: words such as "not found" and "not supported" occur in hundreds of warnings that mean nothing.
"""

from __future__ import annotations

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
        "put fewer envs into each simulator (about 8 with three cameras are possible), or take fewer env.cameras",
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
