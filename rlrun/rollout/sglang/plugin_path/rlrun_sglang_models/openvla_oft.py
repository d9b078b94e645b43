"""The one model that rlrun serves."""

from rlrun_sglang import add_rlrun

add_rlrun()
from rlrun.rollout.sglang.model import EntryClass  # noqa: E402  rlrun has to be importable first

__all__ = ["EntryClass"]
