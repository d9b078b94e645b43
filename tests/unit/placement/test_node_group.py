"""The node group of a machine, before a cluster exists."""

from __future__ import annotations

import pytest

from rlrun.cluster.node_settings import choose_group, num_expected
from rlrun.placement.inventory import Accelerator, NodeInfo
from rlrun.placement.plan import GroupRequest, Request
from rlrun.system.errors import RunError

GROUPS = (GroupRequest("train", 1, "A100"), GroupRequest("sim", 2, "RTX 4090", names=("sim-0", "sim-1")))
REQUEST = Request(GROUPS, ())


def node(name: str, model: str) -> NodeInfo:
    return NodeInfo(name, "", 8, 10**9, (Accelerator(model, 10**9, True),))


def test_groups_are_found_by_accelerator_name_and_word():
    assert choose_group(node("x", "NVIDIA A100-SXM4-80GB"), REQUEST, None).name == "train"
    assert choose_group(node("sim-1", "NVIDIA GeForce RTX 4090"), REQUEST, None).name == "sim"
    assert choose_group(node("x", "T4"), REQUEST, "sim").name == "sim"
    assert num_expected(REQUEST) == 3


def test_a_node_that_fits_no_group_is_refused():
    with pytest.raises(RunError, match="fits none of the groups train, sim"):
        choose_group(node("sim-2", "NVIDIA GeForce RTX 4090"), REQUEST, None)
    with pytest.raises(RunError, match="no node group 'simm'"):
        choose_group(node("x", "T4"), REQUEST, "simm")
