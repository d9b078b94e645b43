"""Stands in for LeRobot's names."""

ACTION, OBS_IMAGE, OBS_IMAGES, OBS_STATE = "action", "observation.image", "observation.images", "observation.state"
POLICY_POSTPROCESSOR_DEFAULT_NAME, POLICY_PREPROCESSOR_DEFAULT_NAME = "policy_postprocessor", "policy_preprocessor"
