"""Stand-in of omnigibson.envs."""

import numpy as np
from standin import Entity, System, Task, Tensor

import omnigibson as og


class BatchedTask(Task):
    """Its literals answer for the first scene; asked by row, it answers for that row."""

    def get_goal_option_satisfaction(self, env_idx):
        return [self.holding(env_idx)]


class Environment:
    """Several scenes."""

    def __init__(self, configs):
        assert configs["robots"][0]["model"] == "r1pro" and "type" not in configs["robots"][0]
        self.num_envs = configs["env"]["num_envs"]
        self.scenes = [og.sim.new_scene() for _ in range(self.num_envs)]
        for scene in self.scenes:
            scene.load(configs["scene"], configs["robots"][0])
        self.task = BatchedTask(self.scenes, configs["task"])
        self.task.object_scopes = [
            {"radio_receiver.n.01_1": Entity(scene, False), "water.n.06_1": System(), "agent.n.01_1": None}
            for scene in self.scenes
        ]
        self._current_steps = np.zeros(self.num_envs, int)
        self.reset()

    def reset(self, env_indices=None, get_obs=True, **kwargs):
        rows = range(self.num_envs) if env_indices is None else env_indices
        for row in rows:
            self.task.reset(row)
            self._current_steps[row] = 0
        if get_obs:
            og.sim.step()
            return self.get_obs(rows)
        return None

    def get_obs(self, env_indices=None):
        rows = range(self.num_envs) if env_indices is None else env_indices
        return [self.scenes[row].robots[0].observation() for row in rows], [{} for _ in rows]

    def load_observation_space(self):
        return None

    def step(self, action, n_render_iterations=1):
        for scene, one in zip(self.scenes, action, strict=True):
            scene.robots[0].apply_action(one)
        og.sim.step()
        seen, about = self.get_obs()
        told = [self.task.step(row, int(self._current_steps[row])) for row in range(self.num_envs)]
        self._current_steps += 1
        rewards = Tensor(np.array([reward for reward, _, _ in told]))
        late = [info["done"]["termination_conditions"]["timeout"]["done"] for _, _, info in told]
        ended = Tensor([done and not one for (_, done, _), one in zip(told, late, strict=True)])
        infos = [info | {"obs_info": one} for (_, _, info), one in zip(told, about, strict=True)]
        return seen, rewards, ended, Tensor(late), infos
