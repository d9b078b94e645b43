"""In which parts an env worker's rows are simulated and answered: while one is answered, another simulates."""

from __future__ import annotations

from itertools import pairwise

from rlrun.config.schema import ClusterKind, RunConfig
from rlrun.config.simulator_spec import simulator_spec


def parts_of(config: RunConfig) -> list[slice]:
    """The rows of every env worker, cut into parts that ask apart from one another.

    They are one part where a rollout worker has `rollout.pipeline_stages` env workers, which take turns themselves;
    where one process does everything, so that nothing overlaps; where the rows of a simulator move together; and where
    messages are recorded, which is one conversation.

    Example: one env worker of 16 rows, one rollout worker, two stages: [slice(0, 8), slice(8, 16)]
    """
    num_rows = config.env.num_envs // config.env.num_workers
    num_parts = min(config.rollout.pipeline_stages, num_rows)
    if (
        config.env.num_workers >= num_parts * config.rollout.num_workers
        or config.cluster.kind is ClusterKind.local
        or simulator_spec(config.env).has_shared_step
        or config.record.num_steps > 0
    ):
        return [slice(0, num_rows)]
    ends = [num_rows * part // num_parts for part in range(num_parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]
