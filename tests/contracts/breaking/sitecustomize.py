"""In the simulator's process of a test: SIGUSR1 breaks the state of one row, as a diverging solver would."""

import gc
import os
import signal


def _break(*_: object) -> None:
    row = int(os.environ["BREAK_ROW"])
    for thing in gc.get_objects():
        if type(thing).__name__ == "MujocoVectorEnv" and thing._rows:
            thing._rows[row].data.qvel[0] = float("inf")


signal.signal(signal.SIGUSR1, _break)
