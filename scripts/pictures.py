"""The pictures of docs/concepts: the three roles, a training step, a placement, a stall, and who imports whom."""

from __future__ import annotations

from collections.abc import Mapping

from drawing import Picture


def pictures(may_import: Mapping[str, set[str]]) -> dict[str, str]:
    """File name below docs/pictures -> SVG. `may_import`: the import table of tests/architecture/test_layers.py."""
    return {
        "roles.svg": roles(),
        "step.svg": step(),
        "placement.svg": placement(),
        "stall.svg": stall(),
        "rooms.svg": rooms(may_import),
    }


def roles() -> str:
    """What crosses each edge between the controller and the three roles."""
    picture = Picture(820, 350, "The controller commands env, rollout and actor workers; what flows between them")
    picture.box(290, 16, 240, 50, ["controller", "sync, collect, update"], "driver")
    picture.box(30, 150, 200, 60, ["env workers", "step simulators, keep frames"], "env")
    picture.box(590, 150, 200, 60, ["rollout workers", "choose actions"], "rollout")
    picture.box(310, 270, 200, 60, ["actor workers", "train, FSDP ranks"], "actor")
    picture.arrow((290, 50), (130, 50), (130, 148), dashed=True)
    picture.arrow((530, 50), (690, 50), (690, 148), dashed=True)
    picture.arrow((410, 66), (410, 268), dashed=True)
    picture.text(140, 70, "commands", "soft small").text(680, 70, "commands", "soft small", "end")
    picture.arrow((232, 166), (588, 166), colour="env")
    picture.text(244, 142, "Observation", "head").text(244, 158, "images, state, instruction", "soft small")
    picture.arrow((588, 196), (232, 196), colour="rollout")
    picture.text(572, 214, "ActionChunk", "head", "end")
    picture.text(572, 230, "actions, log-probs, values", "soft small", "end")
    picture.arrow((130, 212), (130, 300), (308, 300), colour="env")
    picture.text(142, 292, "Trajectory", "head").text(142, 318, "each rank its own shard", "soft small")
    picture.arrow((512, 300), (690, 300), (690, 212), colour="actor")
    picture.text(530, 292, "WeightBucket", "head").text(530, 318, "one policy version", "soft small")
    return picture.svg()


def step() -> str:
    """One synchronous training step over time, one lane a role."""
    picture = Picture(900, 330, "One training step: weight sync, collection, update")
    lanes = {"controller": (50, "driver"), "env workers": (115, "env"), "rollout workers": (180, "rollout")}
    lanes["actor workers"] = (245, "actor")
    for name, (y, _) in lanes.items():
        picture.text(8, y + 20, name, "head").line(130, y + 42, 884, y + 42)
    for x, width, label in (
        (134, 96, "sync weights"),
        (234, 366, "collect"),
        (604, 190, "update"),
        (798, 86, "log, save"),
    ):
        picture.bar(x, 50, width, 30, label, "driver")
    picture.bar(134, 115, 116, 30, "reset, observe", "env")
    picture.bar(134, 180, 96, 30, "load v7", "rollout").bar(134, 245, 76, 30, "send v7", "actor")
    picture.arrow((172, 244), (172, 212), colour="actor")
    for turn in range(3):
        x = 254 + turn * 96
        picture.bar(x, 180, 44, 30, "act", "rollout").bar(x + 48, 115, 48, 30, "step", "env")
        picture.arrow((x - 2, 147), (x + 14, 178), colour="env").arrow((x + 38, 178), (x + 56, 147), colour="rollout")
    picture.bar(546, 115, 54, 30, "build", "env")
    picture.arrow((574, 147), (612, 243), colour="env").text(612, 164, "Trajectory", "small")
    picture.bar(604, 245, 190, 30, "epochs of minibatches: v7 to v8", "actor")
    picture.text(134, 34, "time", "soft small").arrow((164, 30), (884, 30))
    picture.text(
        134,
        306,
        "An observation names the policy version that it needs. The rollout worker answers once it has",
        "soft small",
    )
    picture.text(134, 322, "that version, so that simulators reset while the weights travel.", "soft small")
    return picture.svg()


def placement() -> str:
    """From YAML and an inventory to one slot for each worker."""
    picture = Picture(900, 340, "The planner turns a configuration and the machines into one slot for each worker")
    picture.box(20, 30, 250, 150, [""], "line")
    yaml = (
        "roles:",
        "  actor:   {on: train, …: 0-7}",
        "  rollout: {on: train, …: 0-3}",
        "  env:     {on: sim,   …: 0-3}",
    )
    picture.text(36, 54, "configuration", "head")
    for row, line in enumerate(yaml):
        picture.parts.append(f'<text x="36" y="{80 + row * 20}" class="code" xml:space="preserve">{line}</text>')
    picture.text(36, 168, "the run's sizes", "soft small")
    picture.box(20, 205, 250, 60, ["inventory", "nodes, accelerators, memory, links"], "line")
    picture.box(310, 125, 110, 70, ["planner", "starts no worker"], "driver")
    picture.arrow((272, 105), (308, 145)).arrow((272, 235), (308, 175)).arrow((422, 160), (458, 160))
    picture.box(460, 20, 420, 130, [""], "line").text(476, 44, "train-0: 8 x A100", "head")
    for rank in range(8):
        x = 476 + rank * 50
        picture.bar(x, 60, 44, 34, f"actor {rank}", "actor")
        if rank < 4:
            picture.bar(x, 100, 44, 34, f"roll. {rank}", "rollout")
    picture.text(684, 121, "each slot: node, accelerators,", "soft small")
    picture.text(684, 137, "environment, interpreter, reason", "soft small")
    picture.box(460, 200, 420, 95, [""], "line").text(476, 224, "sim-0: 4 x RTX 4090", "head")
    for rank in range(4):
        picture.bar(476 + rank * 50, 240, 44, 34, f"env {rank}", "env")
    picture.text(684, 261, "the simulator's own Python", "soft small")
    picture.arrow((570, 198), (570, 152), colour="env").text(580, 180, "14.5 GB a step", "small")
    picture.arrow((760, 152), (760, 198), colour="rollout").text(770, 180, "26.5 MB", "small")
    picture.text(20, 300, "Before anything starts the plan says what each", "soft small")
    picture.text(20, 316, "accelerator, host and link has to bear, or by how", "soft small")
    picture.text(20, 332, "much it falls short.", "soft small")
    return picture.svg()


def stall() -> str:
    """The wait-for graph of a hanging simulator, and what follows."""
    picture = Picture(900, 330, "A stall: waits lead from the driver to a simulator that does not return")
    picture.box(20, 60, 130, 56, ["driver", "collect"], "driver")
    picture.box(230, 60, 150, 56, ["env/0", "waits for its actions"], "env")
    picture.box(460, 60, 150, 56, ["rollout/0", "waits for env/1"], "rollout")
    picture.box(700, 60, 180, 56, ["env/1", "no progress in simulate"], "bad")
    picture.arrow((152, 88), (228, 88)).arrow((382, 88), (458, 88)).arrow((612, 88), (698, 88), colour="bad")
    for x, label in ((190, "Trajectory"), (420, "ActionChunk"), (655, "Observation")):
        picture.text(x, 78, label, "small", "middle")
    picture.text(20, 34, "who waits for whom", "head").text(
        180, 34, "arrows point at the one that is waited for", "soft small"
    )
    picture.line(20, 150, 880, 150)
    picture.text(20, 180, "what the watchdog does", "head")
    steps = (
        ("follow the waits", "to those that wait", "for no one"),
        ("judge the silence", "against what is usual", "in this phase"),
        ("collect evidence", "stacks, logs, disks,", "by a process outside Ray"),
        ("print the culprit", "host, process, stack,", "and one action"),
        ("replace the worker", "its episodes are void,", "the step is completed"),
    )
    for place, (head, *rest) in enumerate(steps):
        x = 20 + place * 175
        picture.box(x, 200, 155, 76, [head, *rest], "good" if place == 4 else "driver")
        if place < 4:
            picture.arrow((x + 157, 238), (x + 173, 238))
    picture.text(
        20,
        308,
        "A worker that makes progress is not late, however long the wait: a scene may take minutes to load.",
        "soft small",
    )
    return picture.svg()


def rooms(may_import: Mapping[str, set[str]]) -> str:
    """Who may import whom: a row a package, a dot in the columns of what it may import."""
    order = layered(may_import)
    cell, left, top = 27, 130, 118
    size = cell * len(order)
    picture = Picture(
        left + size + 30, top + size + 48, "Which package may import which: " + import_sentence(may_import)
    )
    for place, package in enumerate(order):
        middle = top + place * cell + cell / 2
        picture.text(left - 12, middle + 4, package, "head", "end")
        picture.text(left + place * cell + cell / 2 + 4, top - 10, package, "", "start", -60)
        picture.line(left, middle + cell / 2, left + size, middle + cell / 2)
        for column, target in enumerate(order):
            if target in may_import[package]:
                picture.dot(left + column * cell + cell / 2, middle, "rollout")
            elif target == package:
                picture.dot(left + column * cell + cell / 2, middle, "line", 2)
    picture.text(
        left,
        top + size + 28,
        "A row may import the columns with a dot. All dots lie on one side: there is no cycle.",
        "soft small",
    )
    return picture.svg()


def layered(may_import: Mapping[str, set[str]]) -> list[str]:
    """The packages, each before all that it may import. Example: layered({"a": set(), "b": {"a"}}) == ["b", "a"]."""
    rest, order = {package: set(targets) for package, targets in may_import.items()}, []
    while rest:
        free = sorted(package for package in rest if not any(package in targets for targets in rest.values()))
        if not free:
            raise ValueError(f"packages that import each other: {sorted(rest)}")
        order += free
        for package in free:
            del rest[package]
    return order


def import_sentence(may_import: Mapping[str, set[str]]) -> str:
    """The table as words. Example: "b imports a; a imports nothing"."""
    return "; ".join(
        f"{name} imports {', '.join(sorted(may_import[name])) or 'nothing'}" for name in layered(may_import)
    )
