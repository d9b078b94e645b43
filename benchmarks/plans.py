"""What the plan chooses and predicts for each shipped GPU run on four inventories: `python -m benchmarks.plans`.

Starts nothing, needs no GPU; counting the policies takes a minute each, once.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.config.checks import OF_INPUTS
from rlrun.config.loader import load
from rlrun.config.schema import RunConfig
from rlrun.placement.fitting import fit_run
from rlrun.placement.inventory import GIGABYTE, Accelerator, Inventory, NodeInfo
from rlrun.placement.step_time import StepTimes
from rlrun.placement.verdict import idle_cards, idle_roles
from rlrun.system.errors import RunError


def _node(name: str, model: str, memory_gb: int, count: int, cores: int, has_rt_cores: bool) -> NodeInfo:
    cards = (Accelerator(model, memory_gb * GIGABYTE, has_rt_cores),) * count
    return NodeInfo(name, "", cores, 1000 * GIGABYTE, cards)


A100 = _node("train-0", "NVIDIA A100-SXM4-80GB", 80, 8, 128, has_rt_cores=False)
H100 = _node("train-0", "NVIDIA H100 80GB HBM3", 80, 8, 128, has_rt_cores=False)
RTX_4090 = _node("sim-0", "NVIDIA GeForce RTX 4090", 24, 8, 64, has_rt_cores=True)
DESK = _node("desk", "NVIDIA GeForce RTX 4090", 24, 1, 16, has_rt_cores=True)
MACHINES = {
    "8 A100": Inventory((A100,)),
    "8 A100 + 8 RTX 4090": Inventory((A100, RTX_4090)),
    "8 H100": Inventory((H100,)),
    "8 H100 + 8 RTX 4090": Inventory((H100, RTX_4090)),
    "1 RTX 4090": Inventory((DESK,)),
}
RUNS = (
    *("behavior_ppo_openvla_oft", "behavior_2026", "libero_rlinf"),
    *("libero_simplevla_rl", "libero_pi05", "libero_smolvla", "libero_gr00t"),
)


def arguments(run: str, machines: str) -> list[str]:
    """Return the arguments of `python -m rlrun.plan` beside `inventory=…`."""
    chosen = [f"run={run}"]
    if "+" in machines and run.startswith("behavior"):
        chosen.append("+placement=dual_node")
    return chosen


def row(run: str, machines: str) -> str:
    """Return a line of the table: what was chosen, the times of a training step, and what idles; or the refusal."""
    config, inventory = load(arguments(run, machines), skipped=OF_INPUTS), MACHINES[machines]
    try:
        fitting = fit_run(config, inventory)
    except RunError as refusal:
        return f"| {run} | {machines} | refused: {refusal.message} | | | | | | | |"
    waiting = (text for key, text in idle_roles(fitting.config, fitting.plan) if key not in fitting.free)
    idle = "; ".join([*idle_cards(fitting.plan), *(text.split(",")[0].split(":")[0] for text in waiting)])
    return f"| {run} | {machines} | {_numbers(fitting.config)} | {_seconds(fitting.budget.times)} | {idle} |"


def _numbers(config: RunConfig) -> str:
    actor = config.actor
    moved = [", in turns"] * bool(config.placement.offload) + [", state on the host"] * bool(actor.cpu_offload)
    workers = f"{actor.num_workers} ranks, {config.env.num_workers} env, {config.rollout.num_workers} rollout"
    share = f"{actor.activation_checkpointing:g} checkpointed"
    return f"{workers}, {actor.micro_batch_size} rows, {share}{''.join(moved)}"


def _seconds(times: StepTimes | None) -> str:
    if times is None:
        return "| | | | | |"
    return (
        f"{times.collect_s:,.0f} s | {times.update_s:,.0f} s | {times.links_s:,.0f} s | {times.sync_s:.1f} s | "
        f"{times.step_s:,.0f} s | {times.overlapped_s:,.0f} s | "
        f"{times.mfu_act:.0%}, {times.mfu_update:.0%}"
    )


def table() -> Iterator[str]:
    """Yield the lines of the table, in Markdown."""
    yield "| run | machines | chosen | collect | update | of it links | sync | step | overlapped | MFU | idle |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for run in RUNS:
        for machines in MACHINES:
            yield row(run, machines)


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)
