"""An SGLang platform for CPUs without SGLang's own kernels: slow, otherwise the same code path as on a GPU."""

from __future__ import annotations

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform


class CpuPlatform(CpuDeviceMixin, SRTPlatform):
    """An out-of-tree platform, for which every operator uses plain torch."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        """Return the attention backend that needs no kernel."""
        return "torch_native"
