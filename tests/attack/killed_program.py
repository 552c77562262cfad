"""`train.py`, which says what it has acknowledged and may end itself within a write.

    python -m tests.attack.killed_program PLAN setting...

PLAN is "none"; "operation:K:FOLDER", to be killed at the K-th file that is opened to be written,
made, renamed or removed in the folder; or "size:N:BYTES", to be killed, after N checkpoints, by the
system within the first write that makes a file longer than this.
"""

import os
import resource
import signal
import sys

from eqfuse.training.checkpoint import Checkpoints
from eqfuse.training.main import main

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


def run(plan: str, arguments: list[str]) -> int:
    """Train as the plan says; return the exit code."""
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
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
