"""What users of other programs type for a calculator, in the words of this one."""

import difflib
import inspect
import os

import jax

_RUNS = ("model_paths", "model_path", "models", "model", "model_name", "checkpoint", "path")
_NO_EFFECT = {  # what they ask for is always so here
    "compile_mode": "programs are always compiled",
    "enable_cueq": "the fused ops are always used, see backend",
    "enable_oeq": "the fused ops are always used, see backend",
    "use_kernel": "the fused ops are always used, see backend",
    "compile_path": "here it is called run, and nothing is compiled before",
    "chemical_symbols": "the run knows its elements",
}
_DAMPING = "bj"


def understood(given: dict, others: dict, known) -> dict:
    """Return arguments in which those of other programs are translated.

    Args:
      given: arguments of ours by name, of which None is one that was left out.
      others: arguments that are none of ours.
      known: the function whose arguments are listed in errors.
    Raises:
      TypeError: an argument that is unknown, or given twice in different words, or no run.
      ValueError: a device other than that of JAX.
    """
    given, others = dict(given), dict(others)
    for name in [name for name in _RUNS if name in others]:
        _set(given, "run", name, _one(name, others.pop(name)))
    for name, ours in {"default_dtype": "dtype", "modal": "head"}.items():
        if name in others and (value := others.pop(name)) not in (None, ""):
            _set(given, ours, name, value)
    _translate_dispersion(given, others)
    device = others.pop("device", None)
    wrong = [_unknown(name, known) for name in others]
    if given["run"] is None and not wrong:
        wrong = ["Calculator needs a run: its folder, the name of a published network, or a file"]
    if wrong:
        raise TypeError("; ".join(wrong))
    _check_device(device)
    return given


def _set(given: dict, name: str, other: str, value):
    if given[name] not in (None, value):
        raise TypeError(f"{other}={value!r} and {name}={given[name]!r} are two words for one thing")
    given[name] = value


def _one(name: str, value):
    """Return the only one of a list of runs."""
    if isinstance(value, list | tuple) and len(value) == 1:
        return value[0]
    if isinstance(value, str | os.PathLike):
        return value
    what = f"{len(value)} of them" if isinstance(value, list | tuple) else type(value).__name__
    raise TypeError(
        f"{name} must be one file, folder or name, got {what}; eqfuse.Committee takes several, "
        "and eqfuse.accelerate a calculator"
    )


def _translate_dispersion(given: dict, others: dict):
    """Translate dispersion=True with damping= and dispersion_xc=; False is the network alone."""
    asked = given["dispersion"]
    details = {name: others.pop(name) for name in ("damping", "dispersion_xc") if name in others}
    if isinstance(asked, bool):
        damping, functional = details.get("damping", _DAMPING), details.get("dispersion_xc", "pbe")
        given["dispersion"] = f"d3({damping},{functional})" if asked else "none"
    elif details:
        raise TypeError(
            f"{', '.join(details)}: with dispersion=True, or in dispersion, such as d3(bj,r2scan)"
        )


def _check_device(device):
    """Refuse a device that is not the one on which JAX computes."""
    kind = str(device or "auto").partition(":")[0].lower()
    here = "cpu" if jax.default_backend() == "cpu" else "cuda"
    if kind not in ("auto", here, *(["gpu"] if here == "cuda" else [])):
        raise ValueError(
            f"device={device} is not that of JAX, {here}; set JAX_PLATFORMS={kind} before the "
            "program starts"
        )


def _unknown(name: str, known) -> str:
    if name in _NO_EFFECT:
        return f"Calculator has no argument {name}: {_NO_EFFECT[name]}"
    arguments = list(inspect.signature(known).parameters)[1:-1]
    near = difflib.get_close_matches(name, arguments, n=1)
    hint = f"nearest: {near[0]}" if near else f"it has {', '.join(arguments)}"
    return f"Calculator has no argument {name}; {hint}"
