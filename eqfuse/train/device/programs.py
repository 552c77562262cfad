"""The programs that XLA compiles, kept for later runs by JAX's own cache of them."""

import contextlib
import hashlib
import os
import pathlib
import re
import time
import warnings

KEPT_DAYS = 30
"""How long a program is kept after it was compiled."""

LONG = 0.1
"""Seconds to compile a program that is worth keeping; JAX's own limit is one."""

_LONG = "jax_persistent_cache_min_compile_time_secs"
_BEFORE_WRITING = "/jax/compilation_cache/cache_misses"
_AFTER_COMPILING = "/jax/core/compile/backend_compile_duration"
_UNREADABLE = re.compile(r"Error reading persistent compilation cache entry for '([^']+)'")


def keep_programs() -> pathlib.Path | None:
    """Let JAX keep the programs that take long to compile, and find them in later runs.

    They are kept in the cache folder, apart for each processor, number of cores and version of
    jaxlib: a program is compiled for these. It is for a process whose work is the training, since
    JAX has one such folder for all that a process compiles; so no import does it. Where they
    are to be kept elsewhere (JAX_COMPILATION_CACHE_DIR) or not at all
    (JAX_ENABLE_COMPILATION_CACHE=false), this does nothing. Programs that other users may have
    written are removed with a warning, since JAX would run them.

    Returns:
      The folder, or None if nothing was done.
    """
    import jax

    if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:
        return None
    from eqfuse.ops._cache import cache_folder, remove_untrusted

    try:
        folder = cache_folder("programs", _machine())
        remove_untrusted(folder)
        _remove_old(folder)
    except OSError:  # such as a full disk: programs are compiled again
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if _LONG.upper() not in os.environ:
        jax.config.update(_LONG, LONG)
    _make_private(folder)
    _remove_unreadable(folder)
    return folder


def _machine() -> str:
    """Return a name for this processor, its usable cores and the version of jaxlib."""
    import jaxlib

    from eqfuse.ops import _processors

    parts = [*_processors.description(), str(_processors.usable()), jaxlib.__version__]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _remove_old(folder: pathlib.Path):
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for path in folder.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process removes it too
            if path.stat().st_mtime < oldest:
                path.unlink()


def _make_private(folder: pathlib.Path):
    """Take from each new entry what a wide umask lets others do, so that a later run trusts it."""
    import jax.monitoring

    written = []

    def before(event, **_):
        if event == _BEFORE_WRITING:
            written.append(event)

    def after(event, *_, **__):
        if event == _AFTER_COMPILING and written:
            written.clear()
            for path in folder.glob("*-cache"):
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mode & 0o022:
                        path.chmod(0o600)

    jax.monitoring.register_event_listener(before)
    jax.monitoring.register_event_duration_secs_listener(after)


def _remove_unreadable(folder: pathlib.Path):
    """Remove entries that JAX warns of, which it would keep: of a full disk or a killed process.

    JAX compiles such a program again, and so does every later run while the entry is there.
    """
    show = warnings.showwarning

    def remove(message, *arguments, **more):
        if match := _UNREADABLE.search(str(message)):
            for path in folder.glob(f"{match[1]}-*"):
                path.unlink(missing_ok=True)
        else:
            show(message, *arguments, **more)

    warnings.showwarning = remove
