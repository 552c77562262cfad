"""Which implementation runs an op: chosen by argument, never by hidden state."""

BACKENDS = ("triton", "numba", "xla", "e3nn")


def resolve(backend: str | None) -> str:
    """The name of the backend that runs, given what was asked for.

    Raises:
      ValueError: a name that is not a backend, or one that cannot run here, saying why.
    """
    if backend is None or backend == "e3nn":
        return "e3nn"
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is unknown; choose one of {', '.join(BACKENDS)}")
    raise ValueError(f"backend {backend!r} is not part of this version; use backend='e3nn'")
