"""Rewards for GUI grounding: Gaussian point and coverage rewards and their rivals, as array kernels."""
