"""A training process that says what it has acknowledged, and may end itself within a write.

Its plan is "none"; "operation:K:FOLDER", to be killed at the K-th file that is opened to be
written, made, renamed or removed in the folder; or "size:N:BYTES", to be killed by the system,
after N checkpoints, within the first write that makes a file longer than this.
"""

import os
import resource
import signal
import sys
import warnings
from multiprocessing.connection import Connection

from eqfuse.train.main import main

# Imported here, once: the server that processes are forked from has all of it.
from eqfuse.train.molecule import Checkpoints

ACKNOWLEDGED = "acknowledged step"
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink"}
_WRITES = os.O_WRONLY | os.O_RDWR


def kill_at_operation(count: int, folder: str):
    """Have this process killed before its K-th change of the folder."""
    left = count

    def changed(event, arguments):
        nonlocal left
        change = event in _CHANGES or (event == "open" and (arguments[2] or 0) & _WRITES)
        if change and str(arguments[0]).startswith(folder):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(changed)


def kill_at_size(size: int):
    """Have this process killed by the system when it writes beyond this many bytes of a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def train(plan: str, arguments: list[str], output: Connection):
    """Train as the plan says, in a process of its own; end it with the exit code of `train.py`.

    Args:
      plan: see above.
      arguments: settings.
      output: to which all that is printed goes; no limit of the size of files ends it.
    """
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    how, _, rest = plan.partition(":")
    count, _, what = rest.partition(":")
    if how == "operation":
        kill_at_operation(int(count), what)
    offer, offers = Checkpoints.offer, 0

    def offered(self, name, step, *arguments, **more):
        nonlocal offers
        offer(self, name, step, *arguments, **more)
        if name != "last":
            return
        print(ACKNOWLEDGED, step, flush=True)
        offers += 1
        if how == "size" and offers == int(count):
            kill_at_size(int(what))

    Checkpoints.offer = offered
    sys.exit(main(arguments))


# JAX warns of a fork after it has started threads; the server has not started them.
warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
