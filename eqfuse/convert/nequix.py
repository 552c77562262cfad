"""Networks of Nequix (`.nqx`), read with NumPy: one line of JSON, then arrays in NumPy's format."""

import itertools
import json
import math
import os

import e3nn_jax as e3nn
import numpy as np

from eqfuse.convert.converted import Converted, ConvertError, refuse, whole_power
from eqfuse.convert.e3nn_torch import Matrices, convolution_paths, gate_in_torch
from eqfuse.convert.layers import Layer, interactions, named
from eqfuse.models import NequIP
from eqfuse.models.irreps import SCALAR, harmonics

_SETTINGS = ("atomic_numbers", "avg_n_neighbors", "cutoff", "hidden_irreps", "index_weights")
_SETTINGS += ("layer_norm", "lmax", "n_layers", "radial_basis_size", "radial_mlp_layers")
_SETTINGS += ("radial_mlp_size", "radial_polynomial_p", "scale", "shift")


def read_nequix(path, _: None = None) -> Converted:
    """Read a .nqx file, which has one head."""
    try:
        with open(path, "rb") as file:
            config = _settings(file, path)
            return _network(config, _Arrays(file, path))
    except OSError as error:
        raise ConvertError(f"{path} cannot be read: {error.strerror or error}") from error


def _network(config: dict, arrays: "_Arrays") -> Converted:
    hidden = e3nn.Irreps(config["hidden_irreps"])
    if [ir for _, ir in hidden] != harmonics(len(hidden) - 1):
        refuse(f"the features {hidden}, not 0e, 1o, 2e, ... in this order")
    count = len(config["atomic_numbers"])
    if not 0 < config["n_layers"] * (1 + config["radial_mlp_layers"]) <= arrays.most:
        refuse(f"{config['n_layers']} layers, of which the file has no arrays")
    scalars = e3nn.Irreps([(mul, ir) for mul, ir in hidden if ir == SCALAR])
    features = [e3nn.Irreps(f"{count}x0e"), *[hidden] * (config["n_layers"] - 1), scalars]
    references = arrays.take(count)
    fields = _fields(config, hidden, count)
    ours = NequIP(**fields).layer_irreps()[:-1]
    layers = [
        _layer(arrays, config, before, after, first=k == 0)
        for k, (before, after) in enumerate(itertools.pairwise(features))
    ]
    params = interactions(layers, ours) | {"embedding": layers[0].up[SCALAR]}
    params["readout"] = named(arrays.matrices(ours[-1], "0e"), ours[-1], "0e")
    return Converted(
        program="nequix",
        model="nequip",
        fields=fields,
        params=params,
        scale=(float(config["scale"]),) * count,
        shift=(float(config["shift"]),) * count,
        references=dict(zip(sorted(config["atomic_numbers"]), references.tolist(), strict=True)),
        dtype=arrays.dtype,
    )


def _settings(file, path) -> dict:
    try:
        config = json.loads(file.readline(1_000_000))
    except ValueError as error:
        raise ConvertError(f"{path} is no file of nequix: it begins with no JSON") from error
    missing = set(_SETTINGS) - set(config if isinstance(config, dict) else ())
    if missing:
        names = ", ".join(sorted(missing))
        raise ConvertError(f"{path} is no file of nequix: its first line has no {names}")
    return config


def _fields(config: dict, hidden: e3nn.Irreps, count: int) -> dict:
    return {
        "irreps_out": "0e",
        "num_species": count,
        "layers": config["n_layers"],
        "channels": hidden.count(SCALAR),
        "lmax": config["lmax"],
        "parity": False,
        "cutoff": float(config["cutoff"]),
        "num_bessel": config["radial_basis_size"],
        "poly_power": whole_power(config["radial_polynomial_p"]),
        "radial_layers": config["radial_mlp_layers"],
        "radial_hidden": config["radial_mlp_size"],
        "avg_num_neighbors": float(config["avg_n_neighbors"]),
        "hidden": str(hidden),
        "keep_irreps": True,
        "embedding_channels": count,
        "one_hot": True,
        "skip": "species" if config["index_weights"] else "linear",
        "layer_norm": bool(config["layer_norm"]),
    }


class _Arrays:
    """The arrays of a file, in their order; training may have left others after them."""

    def __init__(self, file, path):
        self._file, self._path = file, path
        self.most = os.fstat(file.fileno()).st_size // 64  # arrays: the header of one has 64 bytes
        self.dtype = None

    def take(self, *shape: int) -> np.ndarray:
        """Return the next array, which must have this shape, as float64."""
        try:
            self._require_whole()
            array = np.load(self._file, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ConvertError(
                f"{self._path} ends, or is damaged, where an array of {shape} is expected"
            ) from error
        if array.shape != shape:
            raise ConvertError(
                f"{self._path} has an array of {array.shape} where one of {shape} is expected; it "
                "is damaged, or of a version of nequix that is not known here"
            )
        self.dtype = str(array.dtype)
        if self.dtype not in ("float32", "float64"):
            refuse(f"arrays of {self.dtype}")
        return array.astype(np.float64)

    def _require_whole(self):
        """Refuse an array that the rest of the file is too short for, before it takes memory."""
        start = self._file.tell()
        version = np.lib.format.read_magic(self._file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        claimed, _, dtype = read(self._file)
        left = os.fstat(self._file.fileno()).st_size - self._file.tell()
        self._file.seek(start)
        if math.prod(claimed) * dtype.itemsize > left:
            raise ValueError(f"an array of {claimed} is cut off")

    def matrices(self, irreps_in, irreps_out, sets: int | None = None) -> Matrices:
        """Return the next Linear, normalised, by irrep."""
        lead = () if sets is None else (sets,)
        return {
            ir: self.take(*lead, mul, columns) / math.sqrt(mul)
            for mul, ir in e3nn.Irreps(irreps_in)
            for columns, out in e3nn.Irreps(irreps_out)
            if ir == out
        }


def _layer(arrays: _Arrays, config: dict, before, after, *, first: bool) -> Layer:
    kept = {ir for _, ir in after}
    # e3nn-jax sorts paths and gates as e3nn for PyTorch does, where parities are natural
    sh = harmonics(config["lmax"])
    paths = convolution_paths(before, sh, kept.__contains__, sort_weights=True)
    gate = gate_in_torch(after)
    radial = _radial(arrays, config, sum(path.mul for path in paths))
    mid = e3nn.Irreps(
        [(mul, ir) for _, ir in after if (mul := sum(p.mul for p in paths if p.ir == ir))]
    )
    up, down = arrays.matrices(before, before), arrays.matrices(mid, gate)
    count = len(config["atomic_numbers"])
    skip = arrays.matrices(before, gate, count if config["index_weights"] else None)
    norm = None
    if config["layer_norm"]:
        norm = {ir: arrays.take(mul) for mul, ir in gate}
    table = None
    if first:
        [table] = skip.values()
        if table.ndim == 3:  # for each element a Linear, of which it reads one row
            table = table[np.arange(count), np.arange(count)]
    return Layer(
        after=after,
        up=up,
        paths=paths,
        radial=radial,
        down=down,
        skip=None if first else skip,
        table=table,
        norm=norm,
    )


def _radial(arrays: _Arrays, config: dict, width: int) -> list[np.ndarray]:
    # its silu is not normalised
    hidden = [config["radial_mlp_size"]] * config["radial_mlp_layers"]
    sizes = [config["radial_basis_size"], *hidden, width]
    matrices = [arrays.take(*shape) for shape in itertools.pairwise(sizes)]
    # Bessel functions are 2/c sin()/d there and sqrt(2/c) sin()/d here
    matrices[0] = matrices[0] * math.sqrt(2 / float(config["cutoff"]))
    return matrices
