"""Settings of all tests."""

import signal

import torch

# Small tensors gain nothing from several threads, and waiting threads slow a busy machine down.
torch.set_num_threads(1)

# A shell lets background commands ignore Ctrl-C, which the commands that tests interrupt would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
