"""Measurements: each one says what it measured, where, and against what."""
