"""mkdocs hook: the name of the site has the version of rlrun, from pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Return the configuration with "rlrun 1.2.3" as the site's name."""
    project = tomllib.loads((Path(config["config_file_path"]).parent / "pyproject.toml").read_text())["project"]
    config["site_name"] = f"{project['name']} {project['version']}"
    return config
