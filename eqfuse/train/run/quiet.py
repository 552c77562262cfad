"""Contexts in which orbax works: without its pages on the terminal, undisturbed by signals."""

import contextlib
import logging
import signal
import sys
import threading

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""The signals that end a run."""


@contextlib.contextmanager
def quiet():
    """Context without the pages that orbax and tensorstore print of an error that they raise."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    before = sys.unraisablehook
    if not isinstance(before, _WithoutClosedLoops):
        sys.unraisablehook = _WithoutClosedLoops(before)
    try:
        yield
        # After an error it stays: tensorstore's threads go on for a while.
        sys.unraisablehook = before
    except BaseException:
        # So does this: the tasks that failed as well are complained of when they are collected.
        logging.getLogger("asyncio").addFilter(_without_other_failures)
        raise
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _without_other_failures(record: logging.LogRecord) -> bool:
    """Return whether a record of asyncio is not that of a task of tensorstore that
    failed unheard.
    """
    error = record.exc_info[1] if record.exc_info else None
    unheard = "exception was never retrieved" in record.getMessage()
    return not (unheard and any(word in str(error) for word in ("tensorstore", "OCDBT")))


class _WithoutClosedLoops:
    """A `sys.unraisablehook` that leaves out what tensorstore's threads say to a closed event loop.

    orbax reads all arrays at once, and closes its event loop at the first error; each of the others
    would print a stack.
    """

    def __init__(self, before):
        self._before = before

    def __call__(self, unraisable):
        error, trace = unraisable.exc_value, unraisable.exc_traceback
        # No Python function has called it: it was one of tensorstore's threads.
        from_thread = trace is not None and trace.tb_frame.f_code.co_name == "call_soon_threadsafe"
        closed = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        if not (closed and from_thread):
            self._before(unraisable)


@contextlib.contextmanager
def signals_held():
    """Context in which the signals that end a run wait for its end, as an exception would tear it.

    Those that end the process at once, or are ignored, do so still; so do all in other threads than
    the main one, which alone can have handlers.
    """
    held, handlers = [], {}

    def hold(signum, _frame):
        held.append(signum)

    if threading.current_thread() is threading.main_thread():
        for signum in STOPPING:
            if callable(signal.getsignal(signum)):
                handlers[signum] = signal.signal(signum, hold)
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        for signum in held:
            handlers[signum](signum, None)
