"""Live calculators of other programs as calculators of this one, compared on the way."""

import importlib
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from ase.calculators.mixing import SumCalculator

from eqfuse.convert.conversion import convert
from eqfuse.convert.converted import ConvertError
from eqfuse.inference.calculator import Calculator, Committee
from eqfuse.inference.tables import BOUNDS
from eqfuse.runs.errors import CheckpointError

ROUNDING = 1e-4
"""Largest difference that is rounding in float32, relative to forces (1 eV/Å at least), energies
(1 eV an atom) and stress (0.01 eV/Å³): `eqfuse.certify.questions.ROUGHEST`."""
_PROGRAMS = {"MACECalculator": "mace", "SevenNetCalculator": "sevennet"}
_PROGRAMS |= {"NequixCalculator": "nequix", "NequIPCalculator": "nequip"}
_LEAST = {"energy": 1.0, "forces": 1.0, "stress": 0.01}
_UNITS = {"energy": "eV", "forces": "eV/Å", "stress": "eV/Å³"}


def rounding(network, program: str) -> float:
    """Return the largest relative difference that is rounding, of a network here and there.

    In float64, each term of an energy is a product of radial functions, which may be tables here
    (`eqfuse.inference.tables.BOUNDS`), and of couplings, which mace rounds to float32 (2^-24). A
    layer multiplies `correlation` messages, of one radial function, one coupling and the features
    before, by a coupling: n of one layer is correlation (n of the one before + 1), with one more
    of couplings. Errors of factors add. Nequip, Nequix and SevenNet have couplings in float64.
    """
    if network.dtype != "float64":
        return ROUNDING
    model = network.module.potential.model
    power = getattr(model, "correlation", 1)
    tables = couplings = 0
    for _ in range(model.layers):
        tables, couplings = power * (tables + 1), power * (couplings + 1) + 1
    known = BOUNDS["float64"] * tables * network.radial.startswith("tables")
    return known + 2.0**-24 * couplings * (program == "mace") + 1e-10


class Differs(ValueError):
    """The two calculators differ by more than rounding; the message is for the user."""


def accelerate(calculator, *, file=None):
    """Return a calculator with the network of another program's calculator, several times faster.

        atoms.calc = eqfuse.accelerate(mace_mp("small"))

    It has the same head and dtype. On the first structure that it computes, it compares energy,
    forces and, of a crystal, stress with those of the calculator that was given. Members of a sum
    of calculators are replaced one by one, so that its dispersion remains what it was.

    Args:
      calculator: a MACECalculator, SevenNetCalculator, NequixCalculator, NequIPCalculator or
        ase's SumCalculator of one; or what `eqfuse.Calculator` reads, whose calculator is returned.
        An `eqfuse.Calculator` is returned as it is.
      file: the file of the network, for calculators that do not keep it (compiled networks).
    Returns:
      A calculator of ASE; what cannot be converted is returned as it was.
    Raises:
      Differs: by the calculator, on its first structure; nothing can be computed with it then.
      TypeError: what is given is no calculator.
    Warns:
      UserWarning: it is returned as it was; says why.
    """
    if isinstance(calculator, str | os.PathLike) and file is None:
        return Calculator(calculator)
    if isinstance(calculator, type) or not hasattr(calculator, "get_property"):
        raise TypeError(
            "accelerate takes a calculator of ASE, or the name or file of a network and no file=, "
            f"got {calculator!r:.80}"
        )
    if type(calculator) in (Calculator, Committee, Accelerated):
        return calculator
    kind, why = type(calculator).__name__, f"it is none of {', '.join(_PROGRAMS)}"
    if isinstance(calculator, SumCalculator):
        olds = calculator.mixer.calcs
        news = [accelerate(c, file=file) if type(c).__name__ in _PROGRAMS else c for c in olds]
        if any(new is not old for new, old in zip(news, olds, strict=True)):
            return SumCalculator(news)
    elif kind in _PROGRAMS:
        try:
            return _converted(calculator, file)
        except (ConvertError, CheckpointError) as error:
            why = str(error)
        except Exception as error:  # of another program's objects, which may be of any version
            why = repr(error)
    text = f"{kind} is returned as it was, and is not accelerated: {why}"
    warnings.warn(text, UserWarning, stacklevel=2)
    return calculator


def _converted(calculator, file) -> "Accelerated":
    program = _PROGRAMS[type(calculator).__name__]
    units = ("energy_units_to_eV", "length_units_to_A")
    if other := [name for name in units if getattr(calculator, name, 1.0) != 1.0]:
        raise ConvertError(f"it has other units ({other[0]}={getattr(calculator, other[0])})")
    several = len(getattr(calculator, "available_heads", ())) > 1
    choice = calculator.head if several else getattr(calculator, "modal", None)
    with tempfile.TemporaryDirectory() as folder:
        if file is None:
            file = Path(folder) / "network"
            _write(program, calculator, file)
        convert(program, file, Path(folder) / "run", choice=choice)
        dtype = getattr(calculator, "default_dtype", None)
        return Accelerated(Path(folder) / "run", calculator, dtype)


def _write(program: str, calculator, path: Path):
    """Write the network of a calculator to a file, as its program does."""
    torch = sys.modules.get("torch")  # which the calculator has imported
    if program == "mace" and not getattr(calculator, "use_compile", False):
        if calculator.model_type != "MACE" or len(calculator.models) != 1:
            count = len(calculator.models)
            raise ConvertError(f"it has {count} of the kind {calculator.model_type}, not one MACE")
        return torch.save(calculator.models[0], path)
    if program == "sevennet" and calculator.sevennet_config is not None:
        state = calculator.model.state_dict()
        return torch.save({"config": calculator.sevennet_config, "model_state_dict": state}, path)
    if program == "nequix":
        model, config = calculator.model, calculator.config
        if calculator.backend != "jax":
            utils = importlib.import_module("nequix.torch_impl.utils")
            model, config = utils.convert_model_torch_to_jax(model, config, False)
        return importlib.import_module("nequix.model").save_model(path, model, config)
    raise ConvertError(
        "its network is compiled; give the file that it is of by file= (.model, checkpoint .pth or "
        ".nequip.zip)"
    )


class Accelerated(Calculator):
    """A calculator that compares its first structure with another calculator."""

    def __init__(self, run, original, dtype: str | None):
        super().__init__(run, dtype=dtype)
        self.network.name = f"that of a {type(original).__name__}"
        self._original = original

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        """Compute as `Calculator` does; compare the first structure."""
        first = self._original is not None
        names = {*properties, *_LEAST} if first else properties
        super().calculate(atoms, names, system_changes)
        if first:
            self._compare(self.results)
            self._original = None

    def _compare(self, ours: dict):
        atoms = self.atoms.copy()
        atoms.set_constraint()  # ASE's functions would leave out forces that it holds
        atoms.calc = self._original
        theirs = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        # of a slab, mace's is by another volume, of a cell that it makes
        if self.atoms.pbc.all() and "stress" in self._original.implemented_properties:
            theirs["stress"] = atoms.get_stress()
        program = _PROGRAMS.get(type(self._original).__name__)
        most, eps = rounding(self.network, program), np.finfo(self.network.dtype).eps
        for name, value in theirs.items():
            value = np.asarray(value, np.float64)
            size = max(float(np.abs(value).max()), _LEAST[name])
            allowed = most * size
            if name == "energy":  # those of all electrons are large, and only their last digit off
                allowed = most * _LEAST[name] * len(atoms) + 8 * eps * size
            error = float(np.abs(value - ours[name]).max())
            if not error <= allowed:
                self.results = {}
                raise Differs(
                    f"{name} of {type(self._original).__name__} and of its conversion differ by "
                    f"{error:.2g} {_UNITS[name]}, of {allowed:.1g} at most by rounding: compute "
                    "with the former, and please report its version"
                )
