"""A world with two cameras, whose rewards are the actions; import registers it."""

import gymnasium
import numpy as np
from gymnasium import spaces

CAMERA = spaces.Box(0, 255, (16, 16, 3), np.uint8)


class TwoCameras(gymnasium.Env):
    """The two pictures differ, so that a policy that gets them in another order acts otherwise."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    observation_space = spaces.Dict(
        {"pixels": spaces.Dict({"side": CAMERA, "top": CAMERA}), "agent_pos": spaces.Box(-1, 1, (3,), np.float32)}
    )

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        return self._seen(), float(action.sum()), False, False, {}

    def _seen(self):
        top, side = self.np_random.integers(0, 100, CAMERA.shape), self.np_random.integers(150, 256, CAMERA.shape)
        pictures = {"side": side.astype(np.uint8), "top": top.astype(np.uint8)}
        return {"pixels": pictures, "agent_pos": np.zeros(3, np.float32)}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)


gymnasium.register("TwoCameras-v0", TwoCameras)
