"""A simulator as the planner and the doctor see it: its memory, its time and what it needs of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlrun.config.schema import EnvConfig


@dataclass(frozen=True)
class SimulatorMemory:
    """Accelerator or host memory of one env worker. Example: SimulatorMemory(8_200_000_000, 500_000_000)."""

    first_env_bytes: int = 300_000_000  # the process, its scene and the first env
    further_env_bytes: int = 5_000_000  # each further env
    scene_bytes: int = 0  # each scene that envs share, where the first env does not include one
    num_kept_scenes: int = 0  # scenes that stay open beside those of the envs
    num_scenes: int = 1  # that episodes may begin in

    def of(self, num_envs: int, num_starts: int | None = None) -> int:
        """Return the bytes of a worker with `num_envs` envs.

        num_starts: different starts among them, fewer where envs of a group have the same; None: as many.
        """
        starts = num_envs if num_starts is None else num_starts
        scenes = min(starts + self.num_kept_scenes, self.num_scenes)
        return self.first_env_bytes + (num_envs - 1) * self.further_env_bytes + scenes * self.scene_bytes


@dataclass(frozen=True)
class SimulatorTime:
    """Seconds of one env worker on a core and an accelerator of its own, for the plan's estimate.

    Example: SimulatorTime(env_step_s=0.04, picture_s=0.01) steps its envs one after another, 25 control steps a second.
    """

    step_s: float = 0.0  # a control step, whatever the number of envs
    env_step_s: float = 0.0  # a control step, for each env
    picture_s: float = 0.0  # a camera's picture of each env at the end of a chunk

    def of_chunk(self, num_envs: int, num_steps: int, num_images: int) -> float:
        """Return the seconds of a chunk of `num_steps` control steps with `num_images` cameras an env."""
        return num_steps * (self.step_s + num_envs * self.env_step_s) + num_envs * num_images * self.picture_s


@dataclass(frozen=True)
class ResourceSpec:
    """What a simulator needs of a machine. Read by the planner and by the doctor.

    Example: ResourceSpec(memory=lambda env: SimulatorMemory(8_200_000_000, 500_000_000), needs_rt_cores=True)
    """

    memory: Callable[[EnvConfig], SimulatorMemory] = lambda env: SimulatorMemory()  # of an accelerator
    host_memory: Callable[[EnvConfig], SimulatorMemory] = lambda env: SimulatorMemory(500_000_000, 0)
    time: Callable[[EnvConfig], SimulatorTime | None] = lambda env: None  # for the plan's estimate; None: unknown
    needs_rt_cores: bool = False  # whether its accelerators need RT cores
    node_checks: str | None = None  # module:ATTRIBUTE of a rlrun.doctor.measure.SimulatorInspection
