"""Stand-in of omnigibson.lazy."""

from types import SimpleNamespace

from standin import Settings

carb = SimpleNamespace(settings=Settings())
