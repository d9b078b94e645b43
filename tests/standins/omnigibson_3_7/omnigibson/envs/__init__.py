"""Stand-in of omnigibson.envs."""

from standin import Entity, EntityOfSystem
from standin_environments import environment_classes

import omnigibson as og
from omnigibson.tasks.behavior_task import BehaviorTask

Environment, VectorEnvironment = environment_classes(
    og, {"type": "R1Pro"}, BehaviorTask, lambda scene: Entity(scene, True), EntityOfSystem
)
