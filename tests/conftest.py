"""Eight simulated CPU devices for every test, set before the first array exists."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
