"""A scheduler's warning that comes while the command still starts is kept for it."""

from __future__ import annotations

import os
import signal
import sys

from rlrun.nodes.service import _started

COMMAND = """
import time
time.sleep(0.3)  # as imports take
from rlrun.stop_signal import StopSignal
with StopSignal(is_patient=True) as stop:
    raise SystemExit(stop.name)
"""


def test_a_warning_before_there_is_a_handler_is_not_lost(capfd):
    command = _started([sys.executable, "-c", COMMAND], dict(os.environ))
    command.send_signal(signal.SIGUSR1)
    assert command.wait(timeout=60) == 1
    assert capfd.readouterr().err.strip() == "SIGUSR1"
    assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
