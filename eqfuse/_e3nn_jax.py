"""Import e3nn-jax without `scipy.signal`, which takes a third of the time of all imports.

e3nn-jax reads it for the peaks of functions on spheres alone, by the name `scipy.signal`: SciPy
then imports it.
"""

import sys
import types

_SIGNALS = "scipy.signal"

if not {"e3nn_jax", _SIGNALS} & sys.modules.keys():
    sys.modules[_SIGNALS] = types.ModuleType(_SIGNALS)
    try:
        import e3nn_jax  # noqa: F401
    finally:
        del sys.modules[_SIGNALS]
