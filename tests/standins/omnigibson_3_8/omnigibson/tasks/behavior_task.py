"""Stand-in of omnigibson.tasks.behavior_task."""

from standin import Task as BehaviorTask  # noqa: F401
