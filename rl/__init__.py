"""Multi-turn reinforcement learning: advantages, losses, rollouts and the trainer."""
