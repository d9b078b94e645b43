"""The placement of a run as a picture: nodes, their accelerators and CPU, and who sits where."""

from __future__ import annotations

from html import escape
from typing import Any


def placement_picture(plan: dict[str, Any]) -> str:
    """HTML from plan.json's `slots` (role, rank, node, accelerators, why); "" without slots."""
    slots = [slot for slot in plan.get("slots", []) if isinstance(slot, dict) and "role" in slot]
    nodes: dict[str, list[dict[str, Any]]] = {}
    for slot in slots:
        nodes.setdefault(str(slot.get("node", "this machine")), []).append(slot)
    boxes = "".join(_node(name, found) for name, found in nodes.items())
    return f'<div class="nodes">{boxes}</div>' if boxes else ""


def _node(name: str, slots: list[dict[str, Any]]) -> str:
    devices: dict[str, list[str]] = {}
    for slot in slots:
        for device in _devices(slot):
            devices.setdefault(device, []).append(_chip(slot))
    order = sorted(devices, key=lambda device: (device == "CPU", _number(device)))
    cells = "".join(f'<div class="device"><b>{escape(d)}</b>{"".join(devices[d])}</div>' for d in order)
    count = f"{len(slots)} worker{'s' if len(slots) > 1 else ''}"
    return f'<section class="node"><h4>{escape(name)}<small>{count}</small></h4><div>{cells}</div></section>'


def _devices(slot: dict[str, Any]) -> list[str]:
    return [f"GPU {index}" for index in slot.get("accelerators") or []] or ["CPU"]


def _chip(slot: dict[str, Any]) -> str:
    role = str(slot["role"])
    name = f"{role}/{slot['rank']}" if "rank" in slot else role
    why = escape(str(slot.get("why", "")), quote=True)
    return f'<span class="chip {escape(role, quote=True)}" title="{why}">{escape(name)}</span>'


def _number(device: str) -> int:
    number = device.rpartition(" ")[2]
    return int(number) if number.isdigit() else 0
