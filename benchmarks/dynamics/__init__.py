"""Steps of dynamics: on the device, through ASE, and the bare evaluation of the network."""
