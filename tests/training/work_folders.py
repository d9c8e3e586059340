"""Work folders in which attempts were made, shared by the tests of the lock, the record and the folder."""

import subprocess
import sys

from scaffold.errors import Ending, ExitCode
from scaffold.training.workdir import WorkDir


def dead_pid():
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def opened(folder, identity="abc"):
    """Start an attempt."""
    return WorkDir(folder, identity)


def ended(folder, ending=Ending.CONVERGED, code=ExitCode.DONE, epochs=(1, 2), reason="of old age"):
    """Let one attempt run from and to ``epochs``, and end."""
    work = opened(folder)
    work.attempts.resume_from(epochs[0] - 1)
    work.attempts.reached(epochs[1])
    work.close(ending, reason, code)
