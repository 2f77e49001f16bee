"""Transformers that read their own past thoughts: the Feedback Transformer, Staircase attention, and their baselines."""

__version__ = "0.1.0"
