"""Stand-in of omnigibson.tasks.behavior_task."""

from standin import Task


class BehaviorTask(Task):
    """Places the robot in the world's frame: that of scene 0."""

    pose_frame = "world"
