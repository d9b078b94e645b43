"""The placement of a run as a picture: nodes, their accelerators and CPUs, and the workers on them."""

from __future__ import annotations

from html import escape
from typing import Any

from rlrun.observability.live.step_line import memory

CPU = "CPU"


def placement_picture(plan: dict[str, Any]) -> str:
    """Return HTML from plan.json: `slots` (role, rank, node, accelerators, why), `nodes` if known; "" without slots.

    plan.json is `placement.plan.Plan` as JSON. Unused accelerators are marked.
    """
    nodes = {node["node"]["name"]: node for node in plan.get("nodes", [])}
    slots = plan.get("slots", [])
    names = list(dict.fromkeys([*nodes, *(slot["node"] for slot in slots)]))
    boxes = "".join(_node(name, nodes.get(name), [s for s in slots if s["node"] == name]) for name in names)
    return f'<div class="nodes">{boxes}</div>' if slots else ""


def _node(name: str, known: dict[str, Any] | None, slots: list[dict[str, Any]]) -> str:
    models = [gpu["model"] for gpu in known["node"]["accelerators"]] if known else []
    devices: dict[str, list[str]] = {_device(i): [] for i in range(len(models))}
    for slot in slots:
        for device in [_device(i) for i in slot["accelerators"]] or [CPU]:
            devices.setdefault(device, []).append(_chip(slot))
    cells = "".join(_cell(device, chips) for device, chips in devices.items())
    facts = [*dict.fromkeys(models)]
    if known:
        facts += [f"{known['node']['num_cpus']} cores", memory(known["node"]["memory_bytes"])]
    head = f"<h4>{escape(name)}<small>{escape(', '.join(facts))}</small></h4>"
    return f'<section class="node">{head}<div>{cells}</div></section>'


def _cell(device: str, chips: list[str]) -> str:
    content = "".join(chips) or '<span class="free">free</span>'
    return f'<div class="device"><b>{device}</b>{content}</div>'


def _device(index: int) -> str:
    return f"GPU {index}"


def _chip(slot: dict[str, Any]) -> str:
    role = escape(str(slot["role"]), quote=True)
    why = escape(str(slot.get("why", "")), quote=True)
    return f'<span class="chip {role}" title="{why}">{role}/{slot["rank"]}</span>'
