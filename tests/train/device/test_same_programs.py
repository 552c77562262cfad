"""Data of another scale need no other programs: what follows from labels is no constant of them."""

import ase.io
import jax
import pytest

from eqfuse.train.main import main


@pytest.fixture
def misses():
    """Numbers of programs that the cache of compiled programs did not have."""
    events, active = [], True

    def listen(event, **_):
        if active and event == "/jax/compilation_cache/cache_misses":
            events.append(event)

    jax.monitoring.register_event_listener(listen)
    # Every program is kept, however fast it was compiled; others are not counted by JAX.
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 0.0)
    yield events
    jax.config.update(name, before)
    active = False  # there is no public way to take a listener away


def test_other_labels_and_weights_use_the_same_programs(water, tiny, tmp_path, misses):
    frames = ase.io.read(water, ":")
    for atoms in frames:
        results = atoms.calc.results
        results["energy"], results["forces"] = 3 * results["energy"], 3 * results["forces"]
    ase.io.write(tmp_path / "other.xyz", frames, format="extxyz")
    settings = [*tiny, "epochs=1", "data.check=off", "dtype=float64"]  # of no other test here
    assert main([f"data={water}", *settings, f"run={tmp_path / 'first'}"]) == 0
    assert len(misses) > 3
    misses.clear()
    jax.clear_caches()
    more = ["training.energy_weight=7", "training.ema_decay=0.9", f"run={tmp_path / 'second'}"]
    assert main([f"data={tmp_path / 'other.xyz'}", *settings, *more]) == 0
    assert misses == []
