"""Reads the neurons of a language model: which words each one stands for, and how to steer by them."""
