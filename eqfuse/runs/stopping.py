"""How a run ends early, and the exit code of a command.

Ctrl-C ends a run after the step that it is in, checkpoint written.
"""

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from eqfuse.data import DataError
from eqfuse.runs.errors import CheckpointError, ConfigError, Interrupted, TrainingFailed
from eqfuse.runs.log import printable

_SIGHUP = getattr(signal, "SIGHUP", None)
STOPPING = (signal.SIGINT, signal.SIGTERM)
"""The signals that end a run."""
if _SIGHUP is not None:  # Windows has neither
    STOPPING += _SIGHUP, signal.SIGUSR1


class StopRequest:
    """Context in which the signals that end a run are noted rather than raised.

    They are SIGINT (Ctrl-C), SIGTERM, SIGHUP (a closed terminal) and SIGUSR1 (Slurm's `--signal`).
    A second SIGINT or SIGTERM raises KeyboardInterrupt. SIGHUP stays ignored where it is (`nohup`).
    """

    def __init__(self):
        self.signum = None  # the signal received
        self._previous = {}
        self._terminals = []

    def __enter__(self):
        streams = [s for s in (sys.__stdout__, sys.__stderr__) if s is not None and not s.closed]
        self._terminals = [s.fileno() for s in streams if s.isatty()]
        # Python lets only the main thread install handlers.
        if threading.current_thread() is threading.main_thread():
            for signum in STOPPING:
                if signum != _SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_):
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _note(self, signum, _frame):
        if signum == _SIGHUP:
            self._leave_closed_terminals()
        if self.signum is None:
            self.signum = signum
            with contextlib.suppress(OSError):
                text = "stopping after this step; once more stops at once"
                print(text, file=sys.stderr, flush=True)
        elif signum in (signal.SIGINT, signal.SIGTERM):  # a closed terminal may send two
            raise KeyboardInterrupt

    def _leave_closed_terminals(self):
        """Write to nowhere what would be written to a terminal that is gone, which is an error."""
        for descriptor in self._terminals:
            if not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def exit_code(task: Callable[[], int | None], *, refused=(), failures=()) -> int:
    """Run a task and return the exit code of its command.

    It is that which the task returns, or 0; 1 the work failed; 2 settings or data refused; 128 +
    signal if interrupted. `failures` and `refused` are further exceptions of the codes 1 and 2.
    """
    try:
        return task() or 0
    except BrokenPipeError:  # of what reads the output, see `eqfuse.cli.main`
        raise
    except (ConfigError, DataError, *refused) as error:
        return fail(2, error)
    except (TrainingFailed, CheckpointError, *failures) as error:
        return fail(1, error)
    except Interrupted as error:
        print(printable(error), file=sys.stderr)
        return 128 + error.signum
    except (RuntimeError, AssertionError) as error:
        if not _without_device(error):
            raise
        asked = os.environ.get("JAX_PLATFORMS", "")
        text = f"JAX_PLATFORMS={asked} names a device that is not here; unset it, or set it to cpu"
        return fail(2, ConfigError(f"{text} ({error})" if str(error) else text))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if error.filename is None:  # of a pipe
            raise
        return fail(1, error)


def _without_device(error: Exception) -> bool:
    """Return whether an error is that of JAX where no platform that is asked for has a device."""
    if isinstance(error, AssertionError):  # with a plug-in of CUDA that is installed, and no GPU
        last = traceback.extract_tb(error.__traceback__)[-1]
        return last.name == "backends" and Path(last.filename).name == "xla_bridge.py"
    return "nable to initialize backend" in str(error)


def fail(code: int, error: Exception) -> int:
    """Print an error as one line, and return the exit code."""
    print(f"error: {printable(error)}", file=sys.stderr)
    return code
