"""How a run ends early; Ctrl-C ends it after the step that it is in, checkpoint written."""

import signal
import sys
import threading


class TrainingFailed(RuntimeError):
    """The run ended without what it was for; the message is for the user."""


class Interrupted(Exception):
    """The run was asked to stop; `signum` is the signal that did it."""

    def __init__(self, signum: int, message: str):
        super().__init__(message)
        self.signum = signum


class StopRequest:
    """Context in which SIGINT and SIGTERM are noted rather than raised; a second one is raised.

    Attributes:
      signum: the signal received, or None.
    """

    def __init__(self):
        self.signum = None
        self._previous = {}

    def __enter__(self):
        # Python lets only the main thread install handlers.
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_):
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _note(self, signum, _frame):
        if self.signum is not None:
            raise KeyboardInterrupt
        self.signum = signum
        print("stopping after this step; once more stops at once", file=sys.stderr, flush=True)
