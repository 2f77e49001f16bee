"""Benchmarks. Every record states what was measured, on which machine and with which code."""
