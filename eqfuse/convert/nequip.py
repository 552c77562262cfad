"""Packages of nequip and nequip-allegro (`.nequip.zip`): no code in them is executed."""

import math

import numpy as np

from eqfuse.convert.converted import Converted, refuse
from eqfuse.convert.e3nn_torch import coupling_factor, irreps_of
from eqfuse.convert.layers import dense_layers
from eqfuse.convert.nequip_networks import SILU, NequIPPackage, neighbors_of, scalar_matrices
from eqfuse.convert.records import Record, read_package
from eqfuse.models import Allegro
from eqfuse.models.allegro_layers import Paths
from eqfuse.models.irreps import harmonics

_WRAPPERS = ("GraphModel", "StressOutput", "GradientOutput", "PartialForceOutput")
_WRAPPERS += ("ForceStressOutput",)


def read_nequip(path, _: None = None) -> Converted:
    """Read a package of nequip (0.7 and later) or nequip-allegro, which has one head."""
    parts = energy_parts(read_package(path))
    package = AllegroPackage if parts.get("allegro") is not None else NequIPPackage
    return package(parts).converted()


def energy_parts(module: Record) -> Record:
    """Return the parts, in order, of the network of a package, which predict energies of atoms."""
    if module.name == "ModuleDict":  # the networks of a training, by name
        names = list(module.state["_modules"])
        if len(names) != 1:
            refuse(f"several networks in one file ({', '.join(names)})")
        module = module.get(names[0])
    while module.name in _WRAPPERS:
        module = module.get("model") or module.get("func")
    if module.name != "SequentialGraphNetwork":
        refuse(f"a part of the kind {module.name}")
    return module


class AllegroPackage(NequIPPackage):
    """The eager model of a package with layers of Allegro."""

    known = ("edge_norm", "radial_chemical_embed", "scalar_embed_mlp", "tensor_embed", "allegro")
    known += ("edge_readout", "edge_eng_sum", "per_type_energy_scale_shift", "cutoff")
    known += ("pair_potential", "total_energy_sum")
    layer_names = "(?!)"  # none has a number

    def _read_layers(self):
        part = self.func.get("allegro")
        self.products = part.get("tps").children()
        self.latents = [scalar_matrices(mlp, SILU) for mlp in part.get("latents").children()]
        self.channels = int(part.get("num_tensor_features"))
        self.width = int(part.get("num_scalar_features"))
        self.sh = irreps_of(self.products[0].get("irreps_in2"))
        if [ir for _, ir in self.sh] != harmonics(self.sh.lmax):
            refuse(f"spherical harmonics {self.sh}, and not those of natural parity")
        self.paths, self.parity = self._known_paths()

    def _known_paths(self) -> tuple[list[Paths], bool]:
        """Return the paths of our layers, which have the irreps of the file, and our `parity`."""
        theirs = [
            tuple(
                {ir for _, ir in irreps_of(product.get(f"irreps_{side}"))}
                for side in ("in1", "out")
            )
            for product in self.products
        ]
        for parity in (False, True):
            paths = Allegro(layers=len(theirs), lmax=self.sh.lmax, parity=parity).paths()
            if [(set(p.inputs), set(p.products)) for p in paths[:-1]] == theirs:
                return paths[:-1], parity
        refuse("irreps of the features other than all, or those of natural parity")

    def dtype(self):
        return str(np.asarray(self.products[0].get("weights")).dtype)

    def converted(self) -> Converted:
        part = self.func.get("allegro")
        embedding, params = self._embedding()
        [first] = scalar_matrices(self.func.get("tensor_embed.env_embed_linear"), None)
        weighter = self.func.get("tensor_embed._edge_weighter")
        matrices = {
            "two_body": scalar_matrices(self.func.get("scalar_embed_mlp.mlp_module"), SILU),
            "first_features": [self._by_irrep(first, weighter, self.paths[0].inputs)],
            "first_latents": self._with_environment(
                scalar_matrices(part.get("first_layer_env_embed_projection"), None), 0
            ),
            "readout": scalar_matrices(self.func.get("edge_readout.mlp_module"), SILU),
        }
        # what each pair of atoms has twice
        matrices["readout"][-1] = matrices["readout"][-1] / math.sqrt(2)
        params |= {name: dense_layers(w) for name, w in matrices.items()}
        for k, (latents, product) in enumerate(zip(self.latents, self.products, strict=True)):
            mlp = self._with_environment(latents, k + 1) if k + 1 < len(self.paths) else latents
            weights = _path_weights(product, self.paths[k], self.channels)
            params[f"layer_{k}"] = {"mlp": dense_layers(mlp), "path_weights": weights}
        fields = embedding | self._allegro_fields(matrices)
        return self._with_energies("allegro", fields, params)

    def _embedding(self) -> tuple[dict, dict]:
        """Return the settings of what the first MLP reads, and its parameters."""
        part, count = self.func.get("radial_chemical_embed"), len(self.species)
        if part.name == "TwoBodySplineScalarEmbed":
            r_max, cutoffs = self.cutoffs()
            basis = {"cutoff": r_max, "pair_cutoffs": cutoffs, "poly_power": 6, "frequencies": [0]}
            splines, span = (int(part.get(f"spline.{n}")) for n in ("num_splines", "spline_span"))
            table = np.asarray(part.get("spline.class_embed.weight"), np.float64)
            table = table.reshape(count, count, -1, splines)[np.ix_(self.order, self.order)]
            fields = {"two_body": "spline", "num_splines": splines, "spline_span": span}
            fields = self._common_fields(basis, self._neighbors()) | fields
            fields |= {"embedding_dim": table.shape[2], "trainable_bessel": False}
            return fields, {"spline": table}
        embed = part.get("type_embed")
        if embed is None or embed.name != "ProductTypeEmbedding":
            refuse(f"an embedding of pairs of the kind {(embed or part).name}")
        basis = self.basis_of(part.get("bessel_encode"))
        tables = {
            name: np.asarray(embed.get(f"{name}_embed.weight"), np.float64)[self.order]
            for name in ("center", "neighbor")
        }
        [radial] = scalar_matrices(embed.get("basis_linear"), None)
        # Bessel functions here are sqrt(2/c) sin(f d)/d
        radial = radial * (basis["factor"] / math.sqrt(2 / basis["cutoff"]))
        fields = self._common_fields(basis, self._neighbors())
        fields |= {"two_body": "product", "embedding_dim": radial.shape[1]}
        frequencies = np.asarray(basis["frequencies"], np.float64).ravel()
        return fields, tables | {"radial": dense_layers([radial]), "frequencies": frequencies}

    def _neighbors(self) -> tuple[float, ...]:
        of_layers, of_energies = (
            neighbors_of(self.func.get(name))
            for name in ("allegro.avg_num_neighbors_norm", "edge_eng_sum.norm_module")
        )
        if of_layers != of_energies:
            refuse("sums of energies that are divided by something else than those of layers")
        return of_layers

    def _allegro_fields(self, matrices: dict) -> dict:
        widths = {}
        named = {"two_body": [matrices["two_body"]], "readout": [matrices["readout"]]}
        for name, networks in (named | {"latent": self.latents}).items():
            inside = {tuple(w.shape[1] for w in network[:-1]) for network in networks}
            if len(inside) > 1 or len(set(*inside)) > 1:
                refuse(f"networks of scalars with several widths ({name})")
            [inside] = inside
            widths[f"{name}_layers"] = len(inside) + 1
            widths[f"{name}_hidden"] = inside[0] if inside else 1
        return widths | {
            "layers": len(self.paths),
            "channels": self.channels,
            "lmax": self.sh.lmax,
            "parity": self.parity,
            "latent_dim": self.width,
        }

    def _with_environment(self, matrices: list[np.ndarray], k: int) -> list[np.ndarray]:
        """Return matrices whose last columns are the weights of the environment of layer k."""
        last, weighter = matrices[-1], self.func.get("allegro._env_weighter")
        weights = self._by_irrep(last[:, self.width :], weighter, self.paths[k].environment)
        return [*matrices[:-1], np.concatenate([last[:, : self.width], weights], axis=1)]

    def _by_irrep(self, matrix: np.ndarray, weighter: Record, irs) -> np.ndarray:
        """Return columns for each of the harmonics `irs` and each channel, in this order.

        Those of the file are [rows, channels x harmonics], or [rows, channels] for all harmonics.
        """
        rows = len(matrix)
        matrix = matrix * float(weighter.get("alpha"))
        of_channels = matrix.reshape(rows, self.channels, -1)
        whole = np.broadcast_to(of_channels, (rows, self.channels, len(self.sh)))
        chosen = whole[:, :, [ir.l for ir in irs]]
        return np.swapaxes(chosen, 1, 2).reshape(rows, -1)


def _path_weights(product: Record, paths: Paths, channels: int) -> np.ndarray:
    """Return the weights of a `Contracter` in the order of our paths, times signs of couplings."""
    if product.get("scatter_factor") is not None:
        refuse("products that divide by scatter_factor")
    first, second, after = (
        [ir for _, ir in irreps_of(product.get(f"irreps_{side}"))] for side in ("in1", "in2", "out")
    )
    listed = product.get("instructions") or [
        (i, j, o)
        for o, ir in enumerate(after)
        for i, ir_1 in enumerate(first)
        for j, ir_2 in enumerate(second)
        if ir in ir_1 * ir_2
    ]
    ours = [
        (ir, ir_1, ir_2)
        for ir in paths.products
        for ir_1 in paths.inputs
        for ir_2 in paths.environment
        if ir in ir_1 * ir_2
    ]
    if len(ours) != len(listed):
        refuse(f"a product with {len(listed)} paths, where all are {len(ours)}")
    weights = np.asarray(product.get("weights"), np.float64)
    weights = weights.reshape(channels if product.get("path_channel_coupling") else 1, len(listed))
    stored, of_paths = np.asarray(product.get("w3j"), np.float64), {}
    for p, (i, j, o) in enumerate(listed):
        # [2 l1 + 1, 2 l2 + 1, 2 l3 + 1] from the starts on; of one path it has no axis of paths
        coupling = stored[p] if len(listed) > 1 else stored
        if product.get("w3j_is_ij_diagonal"):  # [i, k] of i = j
            coupling = np.einsum("ik,ij->ijk", coupling, np.eye(len(coupling)))
        degrees = (first[i].l, second[j].l, after[o].l)
        starts = [sum(ir.dim for ir in irs[:n]) for irs, n in ((first, i), (second, j), (after, o))]
        place = tuple(slice(s, s + 2 * l + 1) for s, l in zip(starts, degrees, strict=True))
        sign = coupling_factor(coupling[place], degrees)
        of_paths[first[i], second[j], after[o]] = sign * np.broadcast_to(weights[:, p], (channels,))
    return np.concatenate([of_paths[ir_1, ir_2, ir] for ir, ir_1, ir_2 in ours])
