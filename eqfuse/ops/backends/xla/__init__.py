"""The algebra evaluated in jax.numpy, on any device: the definition of what kernels compute."""
