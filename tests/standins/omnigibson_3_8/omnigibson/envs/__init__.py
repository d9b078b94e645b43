"""Stand-in of omnigibson.envs."""

from standin import Entity, System, Task
from standin_environments import environment_classes

import omnigibson as og

Environment, VectorEnvironment = environment_classes(
    og, {"model": "r1pro"}, Task, lambda scene: Entity(scene, False), System
)
