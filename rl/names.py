"""What the settings of a loss may be called. Imports nothing, so that a command's help is there at once."""

REDUCTIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "fixed_denominator")
"""How the losses of tokens add up; see `rl.losses.token_weights`."""

ESTIMATORS = ("k1", "k2", "k3")
"""Of a KL divergence; see `rl.losses.kl`."""
