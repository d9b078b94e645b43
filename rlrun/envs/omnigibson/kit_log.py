"""Known lines of Isaac Sim's log: harmless ones, and those that explain why rendering fails."""

from __future__ import annotations

from rlrun.pipe.output import KnownLine

_DRIVER = "nvidia-smi must show the GPU inside this container or job; install driver 570 or later"
_VULKAN = (
    "install libvulkan1 and the driver's graphics part (in containers NVIDIA_DRIVER_CAPABILITIES=graphics,compute,"
    "utility), so that /usr/share/vulkan/icd.d or /etc/vulkan/icd.d has nvidia_icd.json; check: vulkaninfo --summary"
)

KNOWN_LINES = (
    # --- harmless -----------------------------------------------------------------------------------------
    KnownLine(r"carb\.windowing-glfw\.plugin", "there is no display, and a headless simulator needs none"),
    KnownLine(r"LdrColorSDhost", "a camera was read before its first frame; frames are checked and rendered again"),
    KnownLine(r"omni\.hydra\.scene_delegate\.plugin", "Isaac's own noise about the stage"),
    KnownLine(r"omni\.kit\.manipulator\.prim\.model", "part of a window that is not shown"),
    KnownLine(r"is deprecated|DeprecationWarning", "an older name in Isaac's own extensions"),
    # --- causes of a renderer that does not start ------------------------------------------------------------
    KnownLine(
        r"VK_ERROR_INCOMPATIBLE_DRIVER|vkCreateInstance failed|Failed to find a compatible (Vulkan )?driver|"
        r"VkResult: ERROR_INCOMPATIBLE_DRIVER|libvulkan\.so\.1: cannot open",
        "the Vulkan driver is missing",
        _VULKAN,
    ),
    KnownLine(
        r"lib(Xext|X11|Xt|SM|ICE|GLU|GL|EGL|Xrandr)\.so\S*: cannot open shared object",
        "a system library that Kit loads is missing",
        "apt-get install libxext6 libx11-6 libxt6 libsm6 libice6 libglu1-mesa libgl1 libegl1 libxrandr2",
    ),
    KnownLine(
        r"active_gpu|Invalid GPU index|requested GPU .* (is )?not (found|available)|"
        r"Failed to acquire .*physical device",
        "OMNIGIBSON_GPU_ID names a GPU that Vulkan does not have",
        "compare it with `vulkaninfo --summary`; in placement.roles.env take accelerators that this node shows",
    ),
    KnownLine(
        r"HydraEngine rtx failed creating scene renderer|rtx.*not supported|"
        r"no (device|GPU) (that )?supports? (ray.?tracing|RTX)",
        "the GPU has no RT cores, or is the wrong one",
        "simulate on RTX GPUs (4090, L40S, A6000): A100 and H100 have none; compare OMNIGIBSON_GPU_ID",
    ),
    KnownLine(r"GPU Foundation is not initialized", "Kit found no GPU that it can render with", _VULKAN),
    KnownLine(r"(?i)driver version .*(too old|unsupported|below the minimum)", "the NVIDIA driver is too old", _DRIVER),
    KnownLine(
        r"ERROR_OUT_OF_DEVICE_MEMORY|out of GPU memory|CUDA out of memory",
        "the GPU's memory is full",
        "put fewer simulators on it (placement.roles.env.workers_per_accelerator) or fewer envs into each",
    ),
    # --- what else is missing --------------------------------------------------------------------------------
    KnownLine(
        r"omnigibson\.key|(?i:encryption key|failed to decrypt)",
        "the key of the BEHAVIOR data set is missing",
        "accept its licence and download it with the data set: docs/omnigibson.md",
    ),
    KnownLine(
        r"(?i)(scene|dataset|asset).*(does not exist|not found|No such file)",
        "a scene or asset of the BEHAVIOR data set is missing",
        "set OMNIGIBSON_DATA_PATH in placement.nodes.<group>.environment to the folder with the data set",
    ),
    KnownLine(
        r"(?i)EULA|OMNI_KIT_ACCEPT_EULA",
        "NVIDIA's licence agreement has not been accepted",
        "read it, then set OMNI_KIT_ACCEPT_EULA: 'YES' in placement.nodes.<group>.environment",
    ),
)
