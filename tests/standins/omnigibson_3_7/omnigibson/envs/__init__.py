"""Stand-in of omnigibson.envs."""

from standin import Entity, Task, TiledSensor, control

import omnigibson as og


class Environment:
    """One scene of a vector environment."""

    def __init__(self, configs, in_vec_env=False):
        assert in_vec_env and "num_envs" not in configs["env"]
        assert configs["robots"][0]["type"] == "R1Pro" and configs["robots"][0]["name"]
        self.scene = og.sim.new_scene()
        self.scene.add_robot(configs["robots"][0])
        self.task = Task([self.scene], configs["task"])
        self.task.object_scope = {"radio_receiver.n.01_1": Entity(self.scene, True), "agent.n.01_1": None}
        self._current_step = 0

    def reset(self, get_obs=True, **kwargs):
        self.task.reset(0)
        self._current_step = 0
        if get_obs:
            og.sim.step()
            return self.get_obs()
        return None

    def get_obs(self):
        return self.scene.robots[0].observation(), {}

    def load_observation_space(self):
        return None

    def update_task(self, task_config):
        self.task.config = task_config
        self.reset(get_obs=False)

    def _post_step(self):
        reward, done, info = self.task.step(0, self._current_step)
        self._current_step += 1
        late = info["done"]["termination_conditions"]["timeout"]["done"]
        return self.get_obs()[0], reward, done and not late, late, info


class VectorEnvironment:
    """Steps all environments together, and resets all of them whatever it is told."""

    def __init__(self, num_envs, config):
        self.num_envs = num_envs
        self.envs = [Environment(config, in_vec_env=True) for _ in range(num_envs)]
        if control().get("tiled"):  # as the last builds of 3.7 do
            scenes = [env.scene for env in self.envs]
            self.tiled_sensor = TiledSensor(scenes)
            for scene in scenes:
                scene.is_tiled = True
        for env in self.envs:
            env.reset()

    def step(self, actions):
        for env, action in zip(self.envs, actions, strict=True):
            env.scene.robots[0].apply_action(action)
        og.sim.step()
        return tuple(map(list, zip(*[env._post_step() for env in self.envs], strict=True)))

    def reset(self, get_obs=True, **kwargs):
        return [env.reset(get_obs=get_obs, **kwargs) for env in self.envs]

    def close(self):
        return None
