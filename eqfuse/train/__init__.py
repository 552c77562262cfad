"""Training: configuration, loop, checkpoints."""

__all__ = ["CheckpointError", "load_run", "read_metadata"]


def __getattr__(name: str):
    # The command line reads its settings before it imports JAX, which takes seconds.
    if name in __all__:
        from eqfuse.train.run import checkpoint

        return getattr(checkpoint, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
