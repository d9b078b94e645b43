"""The core names no kind of policy or algorithm: what a kind is stands in its spec alone."""

from __future__ import annotations

import ast

from rlrun.config.registry import ALGORITHMS, POLICIES
from tests.architecture.source import Module, assert_no_breach, modules, snippet

# The default of each key; and SGLang, whose own model of this kind is in a file of that name.
MAY_NAME = {"rlrun.config.schema": {"ppo", "openvla_oft"}}
# and what published evaluations of LIBERO do with each kind
OUTSIDE = ("rlrun.policies", "rlrun.algorithms", "rlrun.rollout.sglang", "rlrun.reproduction")


def named_kinds(module: Module) -> list[str]:
    """String constants of a module of the core that are names of kinds, and imports of their folders."""
    if module.name.startswith(OUTSIDE):
        return []
    kinds = {*POLICIES.names(), *ALGORITHMS.names()} - MAY_NAME.get(module.name, set())
    found = []
    for node in module.nodes:
        if isinstance(node, ast.Constant) and node.value in kinds:
            found.append(f"{module.where}:{node.lineno}: '{node.value}'")
        if isinstance(node, ast.ImportFrom) and node.module and set(node.module.split(".")) & kinds:
            found.append(f"{module.where}:{node.lineno}: {node.module}")
    return found


def test_the_core_names_no_kind() -> None:
    assert_no_breach(breach for module in modules() for breach in named_kinds(module))


def test_the_rule_finds_a_name() -> None:
    text = "if config.algorithm.name == 'grpo':\n    from rlrun.policies.openvla_oft.policy import VlaPolicy"
    assert len(named_kinds(snippet("rlrun.actor.updates", text))) == 2
