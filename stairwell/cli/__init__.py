"""The command line, the only package that parses arguments and prints. Results go to stdout, progress to stderr."""

from stairwell.cli.main import main

__all__ = ["main"]
