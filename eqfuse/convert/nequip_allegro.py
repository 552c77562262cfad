"""Allegro in packages of nequip-allegro (`.nequip.zip`), of whose code nothing is executed."""

import math

import numpy as np

from eqfuse.convert.converted import Converted
from eqfuse.convert.e3nn_records import irreps_of
from eqfuse.convert.nequip_layers import coupling_factor, dense_layers
from eqfuse.convert.nequip_package import NequIPPackage, neighbors_of, scalar_matrices
from eqfuse.convert.nequip_records import refuse
from eqfuse.convert.pickled import Record
from eqfuse.models import Allegro
from eqfuse.models.allegro_layers import Paths
from eqfuse.models.irreps import harmonics

SILU = "SiLU"


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
        """Return the type of the weights."""
        return str(np.asarray(self.products[0].get("weights")).dtype)

    def converted(self) -> Converted:
        """Return the network."""
        part = self.func.get("allegro")
        embedding, params = self._embedding()
        matrices = {
            "two_body": scalar_matrices(self.func.get("scalar_embed_mlp.mlp_module"), SILU),
            "first_features": [self._by_irrep(*self._first_features(), self.paths[0].inputs)],
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
        """Return n of the sums, of which the last one has the same."""
        of_layers, of_energies = (
            neighbors_of(self.func.get(name))
            for name in ("allegro.avg_num_neighbors_norm", "edge_eng_sum.norm_module")
        )
        if of_layers != of_energies:
            refuse("sums of energies that are divided by something else than those of layers")
        return of_layers

    def _allegro_fields(self, matrices: dict) -> dict:
        """Return the settings of layers and MLPs."""
        widths = {}
        named = {"two_body": [matrices["two_body"]], "readout": [matrices["readout"]]}
        for name, networks in (named | {"latent": self.latents}).items():
            inside = {tuple(w.shape[1] for w in network[:-1]) for network in networks}
            if len(inside) > 1 or len(set(*inside)) > 1:
                refuse(f"networks of scalars with several widths ({name})")
            [inside] = inside
            widths |= {f"{name}_layers": len(inside) + 1}
            widths |= {f"{name}_hidden": inside[0] if inside else 1}
        return widths | {
            "layers": len(self.paths),
            "channels": self.channels,
            "lmax": self.sh.lmax,
            "parity": self.parity,
            "latent_dim": self.width,
            "latent_activation": True,
            "readout_activation": True,
            "dense": True,
        }

    def _first_features(self) -> tuple[np.ndarray, Record]:
        """Return the matrix of the weights of the first features, and what applies them."""
        [matrix] = scalar_matrices(self.func.get("tensor_embed.env_embed_linear"), None)
        return matrix, self.func.get("tensor_embed._edge_weighter")

    def _with_environment(self, matrices: list[np.ndarray], k: int) -> list[np.ndarray]:
        """Return matrices whose last columns are the weights of the environment of layer k."""
        last, weighter = matrices[-1], self.func.get("allegro._env_weighter")
        weights = self._by_irrep(last[:, self.width :], weighter, self.paths[k].environment)
        return [*matrices[:-1], np.concatenate([last[:, : self.width], weights], axis=1)]

    def _by_irrep(self, matrix: np.ndarray, weighter: Record, irs) -> np.ndarray:
        """Return columns for each of some harmonics and each channel, in this order.

        Args:
          matrix: [rows, channels x harmonics], or [rows, channels]: weights of all harmonics.
          weighter: a `MakeWeightedChannels`.
          irs: the harmonics to have columns for.
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
    of_paths = {}
    for p, (i, j, o) in enumerate(listed):
        degrees = (first[i].l, second[j].l, after[o].l)
        starts = [sum(ir.dim for ir in irs[:n]) for irs, n in ((first, i), (second, j), (after, o))]
        sign = coupling_factor(_coupling(product, len(listed), p, starts, degrees), degrees)
        of_paths[first[i], second[j], after[o]] = sign * np.broadcast_to(weights[:, p], (channels,))
    return np.concatenate([of_paths[ir_1, ir_2, ir] for ir, ir_1, ir_2 in ours])


def _coupling(product: Record, count: int, p: int, starts, degrees) -> np.ndarray:
    """Return the couplings of path p of `count`, [2 l1 + 1, 2 l2 + 1, 2 l3 + 1]."""
    stored = np.asarray(product.get("w3j"), np.float64)
    stored = (stored if count > 1 else stored[None])[p]
    if product.get("w3j_is_ij_diagonal"):  # [i, k] of i = j
        stored = np.einsum("ik,ij->ijk", stored, np.eye(len(stored)))
    ends = [slice(start, start + 2 * l + 1) for start, l in zip(starts, degrees, strict=True)]
    return stored[tuple(ends)]
