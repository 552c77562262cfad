"""Packages of nequip and nequip-allegro (`.nequip.zip`): no code in them is executed."""

import math
import zipfile

import numpy as np

from eqfuse.convert.converted import Converted, ConvertError, refuse, whole_power
from eqfuse.convert.e3nn_torch import constant_of, coupling_factor, irreps_of, product_of
from eqfuse.convert.latent_charges import latent_ewald
from eqfuse.convert.layers import dense_layers
from eqfuse.convert.nequip_networks import NequIPRecords, NequIPScript, unwrapped
from eqfuse.convert.records import Record, read_compiled, read_package
from eqfuse.models import ZBL, Allegro
from eqfuse.models.allegro_layers import Paths
from eqfuse.models.irreps import harmonics
from eqfuse.models.pairs import radii_of

_PICKLE = "model/eager_model.pkl"
SILU = "SiLU"


def read_nequip(path, _: None = None) -> Converted:
    """Read a network of nequip, or of nequip-allegro, which has one head.

    The file is of `nequip-deploy build` (nequip 0.5 and 0.6, TorchScript), or a package of
    `nequip-package build` (0.7 and later, .nequip.zip).
    """
    names = zipfile.ZipFile(path).namelist() if zipfile.is_zipfile(path) else ()
    if any(name.endswith(f"/{_PICKLE}") for name in names):
        parts = energy_parts(read_package(path, _PICKLE))
        package = AllegroPackage if parts.get("allegro") is not None else NequIPPackage
        return package(parts).converted()
    compiled = read_compiled(path)
    if not compiled.module.kind.startswith("__torch__.nequip."):
        raise ConvertError(f"{path} holds a {compiled.module.kind}, no network of nequip")
    return NequIPScript(compiled).converted()


def energy_parts(module: Record) -> Record:
    """Return the parts, in order, of the network of a package, which predict energies of atoms."""
    if module.name == "ModuleDict":  # the networks of a training, by name
        names = list(module.state["_modules"])
        if len(names) != 1:
            refuse(f"several networks in one file ({', '.join(names)})")
        module = module.get(names[0])
    return unwrapped(module)[1]


class NequIPPackage(NequIPRecords):
    """The eager model of a package."""

    known = ("type_embed", "spharm", "edge_norm", "bessel_encode", "factor", "total_energy_sum")
    known += ("per_atom_energy_readout", "per_type_energy_scale_shift", "pair_potential")
    # of NequIP-LES
    known += ("sr_energy_sum", "latent_charge_readout", "lr_energy_sum")
    harmonics, product = "spharm.irreps_edge_sh", "tp_scatter.tp"

    def __init__(self, func: Record):
        super().__init__(func, list(func.get("per_type_energy_scale_shift.type_names")))

    def long_range(self):
        les = self.func.get("lr_energy_sum.les")
        return None if les is None else latent_ewald(les)

    def part_names(self):
        return list(self.func.state["_modules"])

    def basis(self):
        return self.basis_of(self.func.get("bessel_encode"))

    def basis_of(self, bessel: Record) -> dict:
        if bessel.name != "BesselEdgeLengthEncoding":
            refuse(f"a radial basis of the kind {bessel.name}")
        if bessel.get("cutoff").name != "PolynomialCutoff":
            refuse(f"a cutoff function of the kind {bessel.get('cutoff').name}")
        r_max, cutoffs = self.cutoffs()
        # sinc(x w) w = sin(pi w d / c) c / (pi d)
        weights = np.asarray(bessel.get("bessel_weights"), np.float64)
        return {
            "cutoff": r_max,
            "poly_power": bessel.get("cutoff.p"),
            "pair_cutoffs": cutoffs,
            "frequencies": weights * (math.pi / r_max),
            "factor": float(self.func.get("factor.factor", 1.0)) * r_max / math.pi,
        }

    def cutoffs(self) -> tuple[float, np.ndarray | None]:
        """Return the cutoff, and those of pairs of species if they differ, Å."""
        norm = self.func.get("edge_norm")
        if not norm.get("_per_edge_type"):
            return float(norm.get("r_max")), None
        count = int(norm.get("num_types"))
        reciprocal = np.asarray(norm.get("_rmax_recip"), np.float64).reshape(count, count)
        return float(norm.get("r_max")), 1 / reciprocal

    def embedding(self):
        embed = self.func.get("type_embed")
        if embed.get("do_categorical_graph_field_embed"):
            refuse("embeddings of what is not an element (categorical_graph_field_embed)")
        return np.asarray(embed.get("embed_module.weight"), np.float64)

    def neighbors(self, conv):
        return neighbors_of(conv.get("avg_num_neighbors_norm"))

    def repulsion(self):
        pair = self.func.get("pair_potential")
        if pair is None:
            return None
        if pair.name != "ZBL":
            refuse(f"a pair potential of the kind {pair.name}")
        (r_max, cutoffs), power = self.cutoffs(), pair.get("cutoff.p")
        if cutoffs is not None:
            refuse("ZBL with cutoffs for each pair of elements (per_edge_type_cutoff)")
        return ZBL(
            atomic_numbers=self.species,
            covalent_radii=radii_of(self.species),
            power=whole_power(power, "ZBL with a cutoff"),
            length=0.46850,
            coefficients=(0.18175, 0.50986, 0.28022, 0.02817),
            decays=(3.19980, 0.94229, 0.40290, 0.20162),
            coulomb=2 * float(np.asarray(pair.get("_qqr2exesquare"))),
            cutoff=r_max,
        )

    def radial(self, conv, first):
        matrices = scalar_matrices(conv.get("edge_mlp"), SILU)
        return [matrices[0] * first, *matrices[1:]]

    def skip(self, conv):
        embedding = self.embedding()
        matrices = product_of(conv.get("sc"))
        return {ir: np.einsum("sf,fuv->suv", embedding, w) for ir, w in matrices.items()}

    def readout(self):
        names = ["per_atom_energy_readout"]
        names += [] if self.long_range() is None else ["latent_charge_readout"]
        each = [scalar_matrices(self.func.get(f"{name}.mlp_module"), None) for name in names]
        columns = [w[0] if len(w) == 1 else np.linalg.multi_dot(w) for w in each]
        return np.concatenate(columns, axis=1)

    def per_species(self, name):
        values = self.func.get(f"per_type_energy_scale_shift.{name}")
        if values is None or not np.size(values):
            return np.array(1.0 if name == "scales" else 0.0)
        return np.asarray(values, np.float64).ravel()

    def activation(self, owner, name):
        item = owner.get(name)
        function = getattr(item.get("f"), "kind", "?").rpartition(".")[2].lower()
        return function, constant_of(item)


def neighbors_of(norm: Record) -> tuple[float, ...]:
    """Return n of an `AvgNumNeighborsNorm`, which divides by sqrt(n): one, or one for each type."""
    return tuple((1 / np.asarray(norm.get("norm_const"), np.float64).ravel() ** 2).tolist())


def scalar_matrices(network: Record, act: str | None) -> list[np.ndarray]:
    """Return the matrices of a ScalarMLPFunction, between which is an activation or nothing."""
    mlp = network.get("mlp")
    if mlp.name == "DeepLinearMLP":
        weights = [np.asarray(w, np.float64) for w in mlp.get("weights").arrays()]
        return [np.linalg.multi_dot(weights) * float(np.asarray(mlp.get("alpha")))]
    matrices = []
    for layer in mlp.children():
        if layer.name == "ScalarLinearLayer":
            if layer.get("bias") is not None:
                refuse("networks of scalars with biases")
            weight = np.asarray(layer.get("weight"), np.float64)
            matrices.append(weight * float(np.asarray(layer.get("alpha"))))
        elif layer.name != act:
            expected = act or "no activation"
            refuse(f"a network of scalars with {layer.name}, where {expected} is expected")
    return matrices


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
