"""Stand-in of omnigibson.utils.python_utils."""

from standin import to_tensors as recursively_convert_to_torch  # noqa: F401
