"""The sections of `env_throughput.py` and the parts of `env_soak.py`: environments, peers, and what is measured of them."""
