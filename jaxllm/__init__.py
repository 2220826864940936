"""Llama-architecture language models in JAX: configuration, weights, tokenizer, forward pass and generation."""
