"""Live calculators of other programs as calculators of this one, compared on the way."""

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ase.calculators.mixing import SumCalculator

from eqfuse.convert.convert import convert
from eqfuse.convert.converted import ConvertError, refuse
from eqfuse.inference.calculator import Calculator
from eqfuse.runs.errors import CheckpointError

ROUNDING = {"float32": 1e-4, "float64": 1e-6}
"""Largest difference that is rounding, relative to forces (1 eV/Å at least), energies (1 eV an
atom) and stress (0.01 eV/Å³). It is `eqfuse.certify.questions.ROUGHEST` in float32. In float64 it
is ten times that of constants which a program keeps in float32 (Bessel functions, couplings)."""
_LEAST = {"energy": 1.0, "forces": 1.0, "stress": 0.01}
_UNITS = {"energy": "eV", "forces": "eV/Å", "stress": "eV/Å³"}


class Differs(ValueError):
    """The two calculators differ by more than rounding; the message is for the user."""


def accelerate(calculator, *, file=None):
    """Return a calculator with the network of another program's calculator, several times faster.

        atoms.calc = eqfuse.accelerate(mace_mp("small"))

    It has the same head and dtype. On the first structure that it computes, it compares energy,
    forces and stress with those of the calculator that was given. Members of a sum of calculators
    are replaced one by one, so that its dispersion remains what it was.

    Args:
      calculator: a MACECalculator, SevenNetCalculator, NequixCalculator, NequIPCalculator or
        ase's SumCalculator of one.
      file: the file of the network, for calculators that do not keep it (compiled networks).
    Returns:
      A calculator of ASE; what cannot be converted is returned as it was.
    Raises:
      Differs: by the calculator, on its first structure; nothing can be computed with it then.
    Warns:
      UserWarning: it is returned as it was; says why.
    """
    kind = type(calculator).__name__
    if isinstance(calculator, SumCalculator):
        members = [
            accelerate(one, file=file) if type(one).__name__ in _WRITERS else one
            for one in calculator.mixer.calcs
        ]
        if any(new is not old for new, old in zip(members, calculator.mixer.calcs, strict=True)):
            return SumCalculator(members)
    elif kind in _WRITERS:
        try:
            return _converted(calculator, file)
        except (ConvertError, CheckpointError) as error:
            text = f"{kind} is returned as it was, and is not accelerated: {error}"
            warnings.warn(text, UserWarning, stacklevel=2)
    else:
        known = ", ".join(_WRITERS)
        text = f"{kind} is returned as it was, and is not accelerated: it is none of {known}"
        warnings.warn(text, UserWarning, stacklevel=2)
    return calculator


def _converted(calculator, file) -> "Accelerated":
    program, write = _WRITERS[type(calculator).__name__]
    with tempfile.TemporaryDirectory() as folder:
        written, run = Path(folder) / "network", Path(folder) / "run"
        choice, dtype = write(calculator, written, file)
        convert(program, written if file is None else file, run, choice=choice)
        return Accelerated(run, calculator, dtype)


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
        atoms.calc = self._original
        theirs = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        if self._volume and "stress" in self._original.implemented_properties:
            theirs["stress"] = atoms.get_stress()
        most, eps = ROUNDING[self.network.dtype], np.finfo(self.network.dtype).eps
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


def _mace(calculator, path: Path, file) -> tuple[str | None, str]:
    """Write the network of a calculator to a file; return its head and the dtype."""
    if calculator.model_type != "MACE":
        refuse(f"the kind {calculator.model_type}")
    if len(calculator.models) != 1:
        raise ConvertError(
            f"it is a committee of {len(calculator.models)}; eqfuse.Committee takes their files"
        )
    _require_units(calculator)
    if getattr(calculator, "use_compile", False) and file is None:
        raise ConvertError("its network is compiled; leave out compile_mode, or give file=")
    if file is None:
        sys.modules["torch"].save(calculator.models[0], path)
    heads = getattr(calculator, "available_heads", ())
    return (calculator.head if len(heads) > 1 else None), calculator.default_dtype


def _sevennet(calculator, path: Path, file) -> tuple[str | None, str]:
    torch, config, model = sys.modules["torch"], calculator.sevennet_config, calculator.model
    if file is None and (config is None or isinstance(model, torch.jit.ScriptModule)):
        raise ConvertError("its network is compiled; give the file of its checkpoint by file=")
    if file is None:
        torch.save({"config": config, "model_state_dict": model.state_dict()}, path)
    return getattr(calculator, "modal", None), _torch_dtype(model)


def _nequix(calculator, path: Path, file) -> tuple[None, str]:
    from nequix.model import save_model

    model, config = calculator.model, calculator.config
    if file is None and calculator.backend != "jax":
        from nequix.torch_impl.utils import convert_model_torch_to_jax

        model, config = convert_model_torch_to_jax(model, config, False)
    if file is None:
        save_model(path, model, config)
    return None, "float32"


def _nequip(calculator, path: Path, file) -> tuple[None, str | None]:
    _require_units(calculator)
    if file is None:
        raise ConvertError(
            "its network is compiled; give the file that it is of by file=: the deployed .pth of "
            "nequip 0.5 or 0.6, or the .nequip.zip"
        )
    return None, None


def _require_units(calculator):
    for name in ("energy_units_to_eV", "length_units_to_A"):
        if getattr(calculator, name, 1.0) != 1.0:
            raise ConvertError(f"it has other units ({name}={getattr(calculator, name)})")


def _torch_dtype(model) -> str:
    return str(next(p.dtype for p in model.parameters())).removeprefix("torch.")


_WRITERS: dict[str, tuple[str, Callable]] = {
    "MACECalculator": ("mace", _mace),
    "SevenNetCalculator": ("sevennet", _sevennet),
    "NequixCalculator": ("nequix", _nequix),
    "NequIPCalculator": ("nequip", _nequip),
}
"""By the class of a calculator, its program, and what writes its network to a file."""
