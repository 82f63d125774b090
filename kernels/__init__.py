"""The numeric inner loops of a round, over rows of logits as they lie in llama.cpp's buffer."""

from .reference import argmax, argmax_prob, top

__all__ = ["argmax", "argmax_prob", "top"]
