"""The core names no kind of policy or algorithm: what a kind is stands in its spec alone."""

from __future__ import annotations

import ast

import pytest

from rlrun.config.registry import ALGORITHMS, POLICIES
from tests.architecture.source import Module, modules, snippet

# The default of each key; and SGLang, whose own model of this kind is in a file of that name.
MAY_NAME = {"rlrun.config.schema": {"ppo", "openvla_oft"}}
OUTSIDE = ("rlrun.policies", "rlrun.algorithms", "rlrun.rollout.sglang")


def named_kinds(module: Module) -> list[str]:
    """String constants of a module of the core that are names of kinds, and imports of their folders."""
    if module.name.startswith(OUTSIDE):
        return []
    kinds = {*POLICIES.names(), *ALGORITHMS.names()} - MAY_NAME.get(module.name, set())
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and node.value in kinds:
            found.append(f"{module.where}:{node.lineno}: '{node.value}'")
        if isinstance(node, ast.ImportFrom) and node.module and set(node.module.split(".")) & kinds:
            found.append(f"{module.where}:{node.lineno}: {node.module}")
    return found


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_the_core_names_no_kind(module: Module) -> None:
    assert named_kinds(module) == []


def test_the_rule_finds_a_name() -> None:
    text = "if config.algorithm.name == 'grpo':\n    from rlrun.policies.openvla_oft.policy import VlaPolicy"
    assert len(named_kinds(snippet("rlrun.actor.learner", text))) == 2
