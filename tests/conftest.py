"""Settings of all tests."""

import os
import signal

import torch

# Small tensors gain nothing from several threads, and waiting threads slow a busy machine down.
torch.set_num_threads(1)

# pytest-xdist sets it in its workers; tables that commands print depend on it.
os.environ.pop("COLUMNS", None)

# A shell lets background commands ignore Ctrl-C, which the commands that tests interrupt would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
