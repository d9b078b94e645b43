"""No private interface of a library, torch and Ray first, and no change of sys.modules, outside the listed files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.architecture.source import ROOT, Module, assert_no_breach, imports, modules, read, snippet

EXCEPTIONS = {
    "benchmarks/gpu_7b.py": {"torch._dynamo.utils.counters"},  # torch has no other count of its graphs
    "rlrun/cluster/membership.py": {"ray._raylet.GcsClient"},  # a node asks who belongs to a cluster before it joins
    "rlrun/edges/nccl_group.py": {"_timeout"},  # the only way to give a group of NCCL its deadline
    "rlrun/rollout/sglang/plugin.py": {
        "sglang.srt.multimodal.customized_mm_processor_utils._CUSTOMIZED_MM_PROCESSOR"  # SGLang has no register for it
    },
    "scripts/oracles/robosuite_world.py": {
        "_get_observations",  # robosuite draws again after a state was set
        "_data",  # MuJoCo's own data behind robosuite's, for a second renderer
    },
    "rlrun/policies/openvla_oft/model.py": {"_attn_implementation"},  # how transformers tells a model its attention
    "rlrun/policies/device_work.py": {
        "torch.utils._python_dispatch.TorchDispatchMode",  # the only way to see every operator
        "_unsafe_view",  # names of torch's operators, which begin so
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
    },
    "rlrun/config/sections.py": {"sys.modules"},  # imports a guest's spec under a Python it is not installed in
    "scripts/oracles/libero_in_robosuite.py": {"_get_observations"},  # as robosuite_world.py
    "scripts/oracles/libero_plus.py": {"_setup_camera"},  # the method that the oracle asks
    "scripts/oracles/openvla_oft.py": {"sys.modules"},  # imports one module of RLinf without its packages' Ray
    "scripts/oracles/pi.py": {"_preprocess_images"},  # the method that the oracle asks
    "rlrun/pipe/bootstrap.py": {"sys.modules"},  # runs rlrun's own files under a Python that rlrun is not installed in
}
CHANGES = {"update", "setdefault", "pop", "popitem", "clear", "__setitem__"}
PUBLIC = {"_asdict", "_fields", "_replace", "_exit", "_getframe", "_current_frames", "_value_"}  # documented by Python


def is_private(word: str) -> bool:
    return word.startswith("_") and not word.endswith("__") and word != "_"


@cache
def sources() -> tuple[Module, ...]:
    """What is not a test."""
    beside = [read(path) for folder in ("benchmarks", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]
    return (*modules(), *beside)


@cache
def own_names() -> frozenset[str]:
    """Private names that rlrun itself defines: attributes, functions, classes, constants."""
    found = set()
    for node in (node for module in sources() for node in module.nodes):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
            found.add(node.attr)
    return frozenset(found)


def is_sys_modules(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.modules"


def violations(module: Module) -> Iterator[tuple[str, int]]:
    """(what is used, line)."""
    for name, line in imports(module):
        first, *rest = name.split(".")
        is_known = all(word.isidentifier() for word in name.split("."))  # not computed
        if is_known and first != "rlrun" and any(map(is_private, rest)):
            yield name, line
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in PUBLIC | own_names():
            yield node.attr, node.lineno
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            for target in targets:
                if is_sys_modules(target.value if isinstance(target, ast.Subscript) else target):
                    yield "sys.modules", node.lineno
        elif isinstance(node, ast.Call) and isinstance(called := node.func, ast.Attribute):
            yield from [("sys.modules", node.lineno)] if called.attr in CHANGES and is_sys_modules(called.value) else []


def test_only_the_exceptions_use_private_interfaces() -> None:
    assert_no_breach(
        f"{module.where}:{line}: {name}"
        for module in sources()
        for name, line in violations(module)
        if name not in EXCEPTIONS.get(module.where, ())
    )


def test_no_exception_is_left_over() -> None:
    for where, names in EXCEPTIONS.items():
        text = (ROOT / where).read_text(encoding="utf-8")
        assert all(name.rpartition(".")[2] in text for name in names), where


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("import torch._dynamo", "torch._dynamo"),
        ("from ray._private.state import x", "ray._private.state.x"),
        ("from torch.distributed.tensor import _utils", "torch.distributed.tensor._utils"),
        ("import ray\nray._private.worker", "_private"),
        ("import torch.distributed as dist\ndist.distributed_c10d._set_pg_timeout(1, g)", "_set_pg_timeout"),
        ("options._timeout = 3", "_timeout"),
        ("import sys\nsys.modules |= {'x': None}", "sys.modules"),
        ("import sys\ndel sys.modules['x']", "sys.modules"),
        ("import sys\nsys.modules.pop('x')", "sys.modules"),
    ],
)
def test_the_rule_finds(text: str, used: str) -> None:
    assert [name for name, _ in violations(snippet("rlrun.x", text))] == [used]


def test_the_rule_allows() -> None:
    text = "import sys, torch\nfrom rlrun.x import _own\nself._device = torch.nn.Module.__init__\nsys.modules.get('x')"
    assert list(violations(snippet("rlrun.x", text))) == []
