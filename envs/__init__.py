"""Environments: browsers, shells and games behind batched step servers."""
