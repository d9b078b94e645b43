"""Environment and VectorEnvironment of the generations that have both: 3.7, and 3.8 with 3.9 before the merge."""

import copy

from standin import TiledSensor, control


def environment_classes(og, model_key: dict, task_class, entity_of, system_of):
    """Return Environment and VectorEnvironment of the generations with several Environments.

    model_key: how a robot's configuration names the R1Pro. entity_of: (scene) -> the radio's entity.
    """

    class Environment:
        """One scene of a vector environment."""

        def __init__(self, configs, in_vec_env=False):
            assert in_vec_env and "num_envs" not in configs["env"]
            (robot,) = configs["robots"]
            assert robot.items() >= model_key.items() and not {"type", "model"} - set(model_key) & set(robot)
            self.scene = og.sim.new_scene()
            self.scene.load(configs["scene"], robot)
            self.task = task_class([self.scene], configs["task"])
            self.task.object_scope = {
                "radio_receiver.n.01_1": entity_of(self.scene),
                "water.n.06_1": system_of(),
                "agent.n.01_1": None,
            }
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
            seen, about = self.get_obs()
            reward, done, info = self.task.step(0, self._current_step)
            self._current_step += 1
            late = info["done"]["termination_conditions"]["timeout"]["done"]
            return seen, reward, done and not late, late, info | {"obs_info": about}

    class VectorEnvironment:
        """Steps all environments together, and resets all of them whatever it is told."""

        def __init__(self, num_envs, config):
            self.num_envs = num_envs
            self.envs = [Environment(copy.deepcopy(config), in_vec_env=True) for _ in range(num_envs)]
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

    return Environment, VectorEnvironment
