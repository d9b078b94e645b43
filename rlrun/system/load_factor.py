"""How much longer everything may take on a host with more runnable processes than cores."""

from __future__ import annotations

import os

from rlrun.system.control_group import cpu_quota, is_throttled

_NORMAL_LOAD = 2.0  # runnable processes per core
_MAX_DRIVER_FACTOR = 2.0
_MAX_TRIAL_FACTOR = 10.0


def load_factor(load: float, most: float) -> float:
    """Return the factor for `load` runnable processes per core. Example: load_factor(5.0, most=3.0) == 2.5."""
    return min(most, max(1.0, load / _NORMAL_LOAD))


def local_load() -> float:
    """Return the runnable processes per core of this host, in the last minute; 0 where the kernel does not say.

    The kernel counts them for the whole host. Where a quota halts this process's group most of the time, they share
    the quota's cores.
    """
    try:
        running = os.getloadavg()[0]
    except OSError:
        return 0.0
    quota = cpu_quota()
    cores = os.cpu_count() or 1
    return running / (max(0.1, min(quota, cores)) if quota is not None and is_throttled() else cores)


def trial_factor(load: float) -> float:
    """Return the factor for the time limits of the doctor's trials, which start processes; 10 at most."""
    return load_factor(load, _MAX_TRIAL_FACTOR)


def local_load_factor() -> float:
    """Return the factor for the driver and the guard on this host, 2 at most."""
    return load_factor(local_load(), _MAX_DRIVER_FACTOR)
