"""Files of SevenNet, Nequix and nequip that are damaged, or hold what is not known here."""

import io
import json
import lzma
import pickle
import shutil
import tracemalloc
import zipfile

import numpy as np
import pytest

from eqfuse.convert import ConvertError, convert
from eqfuse.convert.conversion import READERS, reading
from eqfuse.convert.nequip import AllegroPackage, energy_parts, read_nequip
from eqfuse.convert.nequip_networks import NequIPPackage
from eqfuse.convert.nequix import read_nequix
from eqfuse.convert.records import read_package
from eqfuse.convert.sevennet import _check
from tests.convert.conftest import GOLDENS, unpacked
from tests.convert.test_mace_description import of_kind, put
from tests.convert.test_pickled import Harm

SEVENNET = {
    "version": "0.11.0",
    "act_radial": "silu",
    "act_scalar": {"e": "silu", "o": "tanh"},
    "act_gate": {"e": "silu", "o": "tanh"},
    "cutoff_function": {"cutoff_function_name": "XPLOR", "cutoff_on": 4.5},
    "weight_nn_hidden_neurons": [64, 64],
}
NEQUIX = {
    "atomic_numbers": [1, 8],
    "avg_n_neighbors": 4.0,
    "cutoff": 5.0,
    "hidden_irreps": "4x0e+3x1o",
    "index_weights": False,
    "layer_norm": True,
    "lmax": 1,
    "n_layers": 2,
    "radial_basis_size": 3,
    "radial_mlp_layers": 1,
    "radial_mlp_size": 5,
    "radial_polynomial_p": 6.0,
    "scale": 1.5,
    "shift": 0.5,
}
# of two layers: energies; then radial, up, down, skip, norm of each; then the readout
SHAPES = [(2,), (3, 5), (5, 4), (2, 2), (2, 7), (2, 3), (2, 7), (7,), (3,)]
SHAPES += [(3, 5), (5, 7), (4, 4), (3, 3), (7, 4), (4, 4), (4,), (4, 1)]
LINEAR = [shape for shape in SHAPES if shape not in ((7,), (3,), (4,))]  # without norms


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"readout_as_fcn": True}, "a readout that is a network .readout_as_fcn."),
        ({"act_radial": "ssp"}, "activations other than silu, and tanh for odd scalars .*ssp"),
        ({"self_connection_type": "other"}, "a self-connection of the kind 'other'"),
        ({"self_connection_type": ["linear", "x"]}, "a self-connection of the kind 'x'"),
        ({"cutoff_function": {"cutoff_function_name": "cos"}}, "the cutoff function 'cos'"),
        ({"radial_basis": {"radial_basis_name": "gauss"}}, "the radial basis 'gauss'"),
        ({"weight_nn_hidden_neurons": [64, 32]}, r"a radial network of the widths \[64, 32\]"),
        ({"interaction_type": "mace"}, "interactions of the kind 'mace'"),
        ({"optimize_by_reduce": False}, "a layout that sevenn itself reads no more"),
    ],
)
def test_sevennet_parts_without_counterpart_are_refused_by_name(change, message):
    _check(SEVENNET, {"0_convolution.denominator": 1})
    with pytest.raises(ConvertError, match=message):
        _check(SEVENNET | change, {})
    with pytest.raises(ConvertError, match=r"not known here \(zbl\), such as ZBL or D3"):
        _check(SEVENNET, {"zbl.coefficients": 1})


def nqx(path, config=NEQUIX, shapes=SHAPES, after=b"", dtype=np.float32):
    rng = np.random.default_rng(0)
    with open(path, "wb") as file:
        file.write(json.dumps(config).encode() + b"\n")
        for shape in shapes:
            np.save(file, rng.normal(size=shape).astype(dtype))
        file.write(after)
    return path


def test_a_file_of_nequix_is_read_array_by_array(tmp_path):
    for after in (b"", b"more of the training"):
        network = read_nequix(nqx(tmp_path / "a.nqx", after=after))
        assert network.fields["layer_norm"]
        assert network.fields["embedding_channels"] == 2
        assert list(network.references) == [1, 8]
        assert network.scale == (1.5, 1.5)
        assert network.dtype == "float32"
        assert network.params["layer_0"]["skip"].shape == (2, 7)


@pytest.mark.parametrize(
    ("config", "shapes", "message"),
    [
        (NEQUIX, SHAPES[:-1], r"ends, or is damaged, where an array of \(4, 1\) is expected"),
        (NEQUIX, [(3,), *SHAPES[1:]], r"an array of \(3,\) where one of \(2,\) is expected"),
        (NEQUIX | {"hidden_irreps": "4x0e+3x1e"}, SHAPES, "not 0e, 1o, 2e, ... in this order"),
        (NEQUIX | {"radial_polynomial_p": 2.5}, SHAPES, "the power 2.5, which is no whole number"),
        (NEQUIX | {"n_layers": 10**6}, SHAPES, "1000000 layers, of which the file has no arrays"),
        ({"cutoff": 5.0}, SHAPES, "its first line has no atomic_numbers, avg_n_neighbors"),
        ([1], SHAPES, "its first line has no atomic_numbers"),
    ],
)
def test_damaged_files_of_nequix_are_refused(config, shapes, message, tmp_path):
    with pytest.raises(ConvertError, match=message):
        read_nequix(nqx(tmp_path / "a.nqx", config, shapes))


def test_half_precision_is_refused_by_name(tmp_path):
    """It was written as a run that no command could read."""
    with pytest.raises(ConvertError, match="the network has arrays of float16, which"):
        convert("nequix", nqx(tmp_path / "a.nqx", dtype=np.float16), tmp_path / "run")


def test_an_array_that_is_larger_than_its_file_takes_no_memory(tmp_path):
    path = nqx(tmp_path / "a.nqx", shapes=[])
    header = io.BytesIO()
    of = {"descr": "<f8", "fortran_order": False, "shape": (2, 10**9)}
    np.lib.format.write_array_header_1_0(header, of)
    path.write_bytes(path.read_bytes() + header.getvalue())
    tracemalloc.start()
    with pytest.raises(ConvertError, match="ends, or is damaged"):
        read_nequix(path)
    assert tracemalloc.get_traced_memory()[1] < 1e7
    tracemalloc.stop()


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    path = nqx(tmp_path / "a.nqx", NEQUIX | {"layer_norm": False, "shift": float("nan")}, LINEAR)
    with pytest.raises(ConvertError, match="parameters of the network are not all finite"):
        convert("nequix", path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


GELU = of_kind("torch.nn.modules.activation.GELU")
NORM = "avg_num_neighbors_norm.norm_const"
OF_NEQUIP = [
    ("layer1_convnet.resnet", True, "residual layers .resnet."),
    ("layer1_convnet.equivariant_nonlin", of_kind("e3nn.NormActivation"), "NormActivation"),
    ("bessel_encode", of_kind("nequip.nn.Other"), "a radial basis of the kind Other"),
    ("bessel_encode.cutoff", of_kind("nequip.nn.Cosine"), "a cutoff function of the kind Cosi"),
    ("bessel_encode.cutoff.p", 5.5, "a cutoff of the power 5.5"),
    (f"layer1_convnet.conv.{NORM}", np.array([0.5]), "that differ"),
    ("type_embed.do_categorical_graph_field_embed", True, "categorical_graph_field_embed"),
    ("per_type_energy_scale_shift.type_names", ["A", "H", "C"], "that are no elements .A."),
    ("dispersion", of_kind("nequip.nn.D3"), r"not known here \(dispersion\)"),
    ("latent_dipole_readout", of_kind("nequip.nn.X"), r"not known here \(latent_dipole_readout\)"),
    ("pair_potential", of_kind("nequip.nn.LJ"), "a pair potential of the kind LJ"),
]
OF_ALLEGRO = [
    ("scalar_embed_mlp.mlp_module.mlp.1", GELU, "with GELU, where SiLU is expected"),
    ("radial_chemical_embed", of_kind("allegro.nn.Other"), "pairs of the kind Other"),
    ("radial_chemical_embed.type_embed", of_kind("allegro.nn.X"), "pairs of the kind X"),
    (f"allegro.{NORM}", np.array([0.5]), "than those of layers"),
    ("allegro.tps.0.scatter_factor", 0.5, "products that divide by scatter_factor"),
    ("allegro.tps.0.instructions", [(0, 0, 0)], "a product with 1 paths, where all are"),
    ("allegro.tps.0.irreps_out", ((1, (0, 1)),), "irreps of the features other than all"),
    ("allegro.tps.0.irreps_in2", ((1, (0, 1)), (1, (1, 1))), "not those of natural parity"),
    ("dispersion", of_kind("nequip.nn.D3"), r"not known here \(dispersion\)"),
]


@pytest.mark.parametrize(
    ("kind", "part", "value", "message"),
    [(NequIPPackage, *row) for row in OF_NEQUIP] + [(AllegroPackage, *row) for row in OF_ALLEGRO],
)
def test_nequip_parts_without_counterpart_are_refused_by_name(
    kind, part, value, message, package, tmp_path
):
    if kind is AllegroPackage:
        package = unpacked(GOLDENS / "networks" / "allegro_product.nequip.zip.xz", tmp_path)
    parts = energy_parts(read_package(package))
    kind(parts).converted()  # as it is, it can be
    if part in ("dispersion", "latent_dipole_readout", "pair_potential"):
        parts.state["_modules"][part] = value
    else:
        put(parts, part, value)
    with pytest.raises(ConvertError, match=message):
        kind(parts).converted()


def test_several_networks_in_a_package_are_refused_by_name(package):
    module = read_package(package)
    module.state["_modules"]["teacher"] = module.get("sole_model")
    with pytest.raises(ConvertError, match=r"several networks in one file .sole_model, teacher."):
        energy_parts(module)


@pytest.mark.parametrize("program", ["sevennet", "nequix", "nequip"])
@pytest.mark.parametrize("content", [b"", b"no network", b"PK\x03\x04 cut off", b"{}\n"])
def test_files_of_another_kind_are_refused_in_one_sentence(program, content, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ConvertError, match=str(path)) as caught, reading(program, path):
        READERS[program](path, None)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def files(package, tmp_path_factory):
    """Content of a small file of each program."""
    stored = GOLDENS / "networks" / "sevennet_both_parities.pth.xz"
    return {
        "sevennet": lzma.decompress(stored.read_bytes()),
        "nequip": package.read_bytes(),
        "nequix": nqx(tmp_path_factory.mktemp("nqx") / "a.nqx").read_bytes(),
    }


@pytest.mark.parametrize("program", ["sevennet", "nequip", "nequix"])
def test_damaged_files_are_refused_in_one_sentence_and_write_nothing(program, files, tmp_path):
    rng, messages = np.random.default_rng(0), []
    path, run = tmp_path / "a.nequip.zip", tmp_path / "run"
    for k in range(12):
        data = bytearray(files[program])
        at = rng.integers(min(len(data), 3000) if program == "nequix" else len(data))
        data[at : at + [1, 50, len(data)][k % 3]] = [b"\xff", b"", b""][k % 3]
        path.write_bytes(bytes(data))
        try:
            convert(program, path, run)
            shutil.rmtree(run)  # what was changed is not read, or is a number of a weight
        except ConvertError as error:
            messages.append(str(error))
        assert not run.exists()
    assert len(messages) > 4
    assert not any("\n" in message for message in messages)


def test_nothing_of_a_package_is_executed(package, tmp_path):
    """Code of a package, and a function that a pickle calls, stay what they are: bytes."""
    path, mark = tmp_path / "c.nequip.zip", tmp_path / "executed"
    harm = pickle.dumps(Harm(exec, f"open({str(mark)!r}, 'w')"))
    with zipfile.ZipFile(package) as archive, zipfile.ZipFile(path, "w") as out:
        for name in archive.namelist():
            is_model = name.endswith("eager_model.pkl")
            out.writestr(name, harm if is_model else archive.read(name))
    with pytest.raises(ConvertError), reading("nequip", path):
        read_nequip(path)
    assert not mark.exists()
