"""Settings that go together, by name: `python train.py model=mace preset=large`.

`small`, `medium` and `large` set the network only. `3bpa` and `rmd17` are what the papers trained
on those data, and set the training too, which a run on Tetris does not have. What is given on the
command line beside a preset wins over it.
"""

# Batatia et al. 2022, appendix A.5, of MACE and of NequIP alike. There the energy of a molecule has
# a weight of 1 and the forces 1000: N^2 / 1000 and 1 for the energy per atom, of N atoms. MACE also
# had a weight decay of 5e-7 on some weights, part of a gradient some 1000 times ours; left out.
_PUBLISHED = """
  training.optimizer=amsgrad training.lr=0.01 training.schedule=plateau training.patience=50
  training.factor=0.8 training.ema_decay=0.99 training.forces_weight=1 data.batch_size=5 epochs=2000
  training.second_stage=null
"""
_3BPA = _PUBLISHED + "training.energy_weight=0.729 data.val=50 dtype=float64"
# N is 9 to 24 in rMD17, 21 for aspirin
_RMD17 = _PUBLISHED + "training.energy_weight=0.441 data.train=950 data.val=50"
# Musaelian et al. 2023, Methods: the training of Allegro on the same data.
_ALLEGRO_TRAINING = """
  training.optimizer=adam training.lr=0.002 training.patience=100 epochs=100000
"""
_NEQUIP = """
  model.parity=true model.num_bessel=8 model.poly_power=6 model.radial_layers=2
  model.radial_hidden=64 model.cutoff=5 model.channels=64
"""
_NEQUIP_LARGE = _NEQUIP + "model.layers=5 model.lmax=3 "
_MACE = """
  model.layers=2 model.lmax=3 model.correlation=3 model.cutoff=5 model.num_bessel=8
  model.poly_power=5 model.radial_hidden=64 model.readout_hidden=16
"""
_MACE_OF_TODAY = _MACE + "model.channels=128 model.radial_layers=3 "
_MACE_PUBLISHED = _MACE + "model.channels=256 model.radial_layers=2 model.hidden_lmax=2 "
_ALLEGRO = """
  model.parity=true model.two_body_layers=4 model.latent_layers=3 model.latent_activation=true
  model.readout_hidden=128 model.cutoff=5 model.num_bessel=8 model.poly_power=6
"""
_ALLEGRO_LARGE = _ALLEGRO + "model.layers=3 model.channels=128 model.lmax=3 model.latent_dim=1024 "
_TEXTS = {
    "nequip": {
        "small": _NEQUIP + "model.layers=3 model.channels=32 model.lmax=1",
        "medium": _NEQUIP + "model.layers=4 model.lmax=2",
        "large": _NEQUIP_LARGE,
        "3bpa": _NEQUIP_LARGE + "model.cutoff=4" + _3BPA,
        "rmd17": _NEQUIP_LARGE + "model.cutoff=4" + _RMD17,
    },
    "allegro": {
        "small": _ALLEGRO + "model.layers=1 model.channels=32 model.lmax=2 model.latent_dim=256",
        "medium": _ALLEGRO + "model.layers=2 model.channels=64 model.lmax=2 model.latent_dim=512",
        "large": _ALLEGRO_LARGE,
        "3bpa": _ALLEGRO_LARGE
        + "model.poly_power=2 model.latent_activation=false"
        + _3BPA
        + _ALLEGRO_TRAINING
        + "training.energy_weight=1",
        "rmd17": _ALLEGRO_LARGE + "model.cutoff=7" + _RMD17 + _ALLEGRO_TRAINING,
    },
    "mace": {
        "small": _MACE_OF_TODAY + "model.hidden_lmax=0",
        "medium": _MACE_OF_TODAY + "model.hidden_lmax=1",
        "large": _MACE_OF_TODAY + "model.hidden_lmax=2",
        "3bpa": _MACE_PUBLISHED + _3BPA,
        "rmd17": _MACE_PUBLISHED + _RMD17,
    },
}
PRESETS: dict[str, dict[str, dict[str, str]]] = {
    model: {
        name: dict(setting.split("=") for setting in text.split()) for name, text in texts.items()
    }
    for model, texts in _TEXTS.items()
}
"""By model and name: full names of settings, and their values as they would be typed."""
