"""Compiled programs that the next process finds on disk, and does not even trace.

JAX's own cache spares the compilation, but a network is traced and lowered first, which takes most
of the time of a first answer. A program is kept beside those of JAX, where `keep_programs` chose
the folder, together with the text of its native kernels. It is found by all that it was made of:
the settings of the network, shapes, the source of eqfuse, versions, settings of JAX and of the
environment.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import math
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import jax
from jax.experimental import serialize_executable

from eqfuse import ops
from eqfuse.ops import _kept
from eqfuse.ops.backends.llvm import machine
from eqfuse.runs.process import without_collection

_PACKAGES = ("jax", "jaxlib", "e3nn-jax", "flax", "llvmlite")
_LOCK = threading.Lock()
_VARIABLES = ("XLA_FLAGS", "OMP_NUM_THREADS")


class Kept:
    """A jitted function of trees of arrays and of static numbers, whose programs are kept on disk.

    Args:
      function: it is called with the arrays, and with the static numbers by name.
      made_of: text on which it depends besides the arguments, or None, to keep nothing.
      result: a function of the arrays that returns a tree of the structure of the result, without
        being traced; by default the function returns one array.
      donated: the numbers of the arguments whose memory the program may use.
    """

    def __init__(
        self,
        function: Callable,
        made_of: str | None,
        *,
        result: Callable = lambda *_: 0,
        donated: tuple[int, ...] = (),
    ):
        # kept ones are not in JAX's cache, whose programs have another name
        function.__name__ = "program" if made_of is None else "kept_program"
        self._function, self._made_of = function, made_of
        self._result, self._donated = result, donated
        self._programs: dict[tuple, Callable] = {}

    def __len__(self) -> int:
        return len(self._programs)

    def __call__(self, *arguments, **static):
        leaves, tree = jax.tree.flatten(arguments)
        key = tuple(static.items()), tree, tuple([(leaf.shape, leaf.dtype) for leaf in leaves])
        if key not in self._programs:
            with without_collection():
                self._programs[key] = self._program(arguments, key)
        return self._programs[key](*arguments)

    def _program(self, arguments, key) -> Callable:
        static, tree, shapes = key
        function = functools.partial(self._function, **dict(static))
        ops.measure_on_gpu(function, *arguments, together=False)
        jitted = jax.jit(
            self._function, static_argnames=tuple(dict(static)), donate_argnums=self._donated
        )
        if self._made_of is None or (folder := _folder()) is None:
            return jitted.lower(*arguments, **dict(static)).compile()
        made_of = _made_of_everywhere(), self._made_of, static, str(tree), shapes, _settings()
        kept = _kept.Kept(folder, repr(made_of), "-cache", "eqfuse-")
        trees = (jax.tree.structure(one) for one in ((arguments, {}), self._result(*arguments)))
        if (content := kept.read()) is not None:
            return _loaded(content, *trees)
        with machine.registered() as kernels, _out_of_jax_cache():
            program = jitted.lower(*arguments, **dict(static)).compile()
        # what cannot be stored is compiled again by the next process
        with contextlib.suppress(ValueError, NotImplementedError):
            kept.write(pickle.dumps((kernels, serialize_executable.serialize(program)[0])))
        return program


@contextlib.contextmanager
def _out_of_jax_cache():
    """Keep programs out of JAX's cache: what XLA reads from there, it stores without functions."""
    with _LOCK:
        before = jax.config.jax_persistent_cache_min_compile_time_secs
        jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
        try:
            yield
        finally:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", before)


def _loaded(content: bytes, in_tree, out_tree) -> Callable:
    kernels, program = pickle.loads(content)  # of a file that only this user can write
    for name, text in kernels.items():
        machine.register(name, text)
    return serialize_executable.deserialize_and_load(program, in_tree, out_tree)


def _folder() -> Path | None:
    """Return the folder of programs if eqfuse chose it; None where it is JAX's own, or for GPUs."""
    named = jax.config.jax_compilation_cache_dir
    if not (named and jax.config.jax_enable_compilation_cache) or jax.default_backend() != "cpu":
        return None
    ours = _kept.cache_folder("programs")
    return Path(named) if ours == Path(named).parent else None


@functools.cache
def _made_of_everywhere() -> str:
    """Return a hash of the source of eqfuse, and versions."""
    source, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        source.update(str(path.relative_to(root)).encode() + path.read_bytes())
    versions = [importlib.metadata.version(name) for name in _PACKAGES]
    return f"{source.hexdigest()} {versions}"


def _settings() -> str:
    """Return what a user may have set, in JAX, e3nn-jax or the environment."""
    import e3nn_jax

    of_jax = [(k, v) for k, v in sorted(jax.config.values.items()) if "cache" not in k]
    own = [(k, v) for k, v in sorted(os.environ.items()) if k.startswith("EQFUSE_")]
    own = [(k, v) for k, v in own if k not in ("EQFUSE_CACHE_DIR", "EQFUSE_TEST_DATA")]
    others = [os.environ.get(name) for name in _VARIABLES]
    normalization = [e3nn_jax.config(n) for n in ("gradient_normalization", "path_normalization")]
    return repr((of_jax, own, others, normalization))
