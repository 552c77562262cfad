"""What users of other programs type for a calculator, in the words of this one."""

import difflib
import inspect
import os

import jax

_RUNS = ("model_paths", "model_path", "models", "model", "model_name")
_OURS = {"default_dtype": "dtype", "modal": "head"}
_NO_EFFECT = dict.fromkeys(
    ("compile_mode", "enable_cueq", "enable_oeq", "use_kernel", "compile_path"),
    "the fused ops are always used and compiled, see backend",
) | {"chemical_symbols": "the run knows its elements"}


def understood(given: dict, others: dict, known) -> dict:
    """Return arguments in which those of other programs are translated.

    Those `given` are ours, of which None was left out; errors list those of the function `known`.

    Raises:
      TypeError: an argument that is unknown, or given twice in different words, or no run.
      ValueError: a device other than that of JAX.
    """
    given, others = dict(given), dict(others)
    device = others.pop("device", None)
    for name in [name for name in (*_RUNS, *_OURS) if name in others]:
        value, ours = others.pop(name), _OURS.get(name, "run")
        if ours == "run":
            value = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
            if not isinstance(value, str | os.PathLike):
                text = "must be a file, folder or name; eqfuse.Committee takes several"
                raise TypeError(f"{name} {text}")
        if value and given[ours] not in (None, value):
            raise TypeError(f"{name}={value!r} and {ours}={given[ours]!r} are one thing")
        given[ours] = value or given[ours]
    if isinstance(given["dispersion"], bool):  # False is the network alone
        d3 = f"d3({others.pop('damping', 'bj')},{others.pop('dispersion_xc', 'pbe')})"
        given["dispersion"] = d3 if given["dispersion"] else "none"
    wrong = [_unknown(name, known) for name in others]
    if given["run"] is None and not wrong:
        wrong = ["Calculator needs a run: its folder, the name of a published network, or a file"]
    if wrong:
        raise TypeError("; ".join(wrong))
    kind = str(device or "auto").partition(":")[0].lower()
    here = ("cpu",) if jax.default_backend() == "cpu" else ("cuda", "gpu")
    if kind not in ("auto", *here):
        raise ValueError(
            f"device={kind} is not that of JAX, {here[0]}; set JAX_PLATFORMS={kind} before the "
            "program starts"
        )
    return given


def _unknown(name: str, known) -> str:
    if name in ("damping", "dispersion_xc"):
        return f"{name}: with dispersion=True, or in dispersion, such as d3(bj,r2scan)"
    arguments = list(inspect.signature(known).parameters)[1:-1]
    near = difflib.get_close_matches(name, arguments, n=1)
    hint = f"nearest: {near[0]}" if near else f"it has {', '.join(arguments)}"
    return f"Calculator has no argument {name}; {_NO_EFFECT.get(name, hint)}"
