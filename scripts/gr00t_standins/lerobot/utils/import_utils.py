"""Stands in for LeRobot's checks of packages."""

_transformers_available, _diffusers_available, _datasets_available = True, True, False


def require_package(*names: str, **options: str) -> None:
    """Ask for nothing."""
