"""A small world in which rewards for grounding can be compared in minutes: scenes, a policy that looks, and its training."""
