"""No kernel, operation or byte of a policy's pass comes or goes unseen."""

from __future__ import annotations

import pytest
import torch

from rlrun.policies.openvla_oft.model import OpenVLAOFT
from tests.golden import policy_work


def differences(name: str) -> str:
    """What a policy computes now beside its lines in the table; "" if it is the same."""
    table = policy_work.TABLE.read_text(encoding="utf-8").splitlines()
    wanted = [line for line in table if line.startswith(f"{name:<24} ")]
    found = policy_work.rows(name)
    if found == wanted:
        return ""
    both = "\n".join(["in the table:", *wanted, "now:", *found])
    return f"{both}\nif all of this is meant: {policy_work.REMEDY}"


@pytest.mark.parametrize("name", policy_work.POLICIES)
def test_the_work_is_that_of_the_table(name: str) -> None:
    changed = differences(name)
    assert changed == "", changed


def test_one_more_kernel_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = OpenVLAOFT.forward

    def longer(self: OpenVLAOFT, ids: torch.Tensor, mask: object, pixels: torch.Tensor, proprio: object = None):
        return forward(self, ids, mask, pixels * 1.0, proprio)

    monkeypatch.setattr(OpenVLAOFT, "forward", longer)
    assert "--write" in differences("openvla_oft")
