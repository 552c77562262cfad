"""The exit code of a command, and the line that it prints where it fails."""

import sys
from collections.abc import Callable

from eqfuse.train.settings.schema import ConfigError


def exit_code(task: Callable[[], None], failures: tuple[type[Exception], ...] = ()) -> int:
    """Run a task and return the exit code of its command.

    Args:
      task: the work, which may raise errors whose messages are for the user.
      failures: further exceptions that are failures of the work.
    Returns:
      0 done; 1 the work failed; 2 settings or data refused; 128 + signal if interrupted.
    """
    # JAX takes seconds to import: refused settings do not wait for it.
    from eqfuse.data import DataError
    from eqfuse.train import CheckpointError
    from eqfuse.train.run.stopping import Interrupted, TrainingFailed

    try:
        task()
    except (ConfigError, DataError) as error:
        return fail(2, error)
    except (TrainingFailed, CheckpointError, *failures) as error:
        return fail(1, error)
    except Interrupted as error:
        print(error, file=sys.stderr)
        return 128 + error.signum
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def fail(code: int, error: Exception) -> int:
    """Print an error as one line, and return the exit code."""
    # A name may hold line ends, and what a terminal takes for commands.
    shown = (c if c.isprintable() else ascii(c)[1:-1] for c in str(error))
    print(f"error: {''.join(shown)}", file=sys.stderr)
    return code
