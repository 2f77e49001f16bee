"""What holds for all tests."""

import signal

import torch

# Small tensors gain nothing from many threads, and threads that wait for each other make a busy machine slow.
torch.set_num_threads(1)

# A shell lets commands in the background ignore Ctrl-C, and they hand that down to the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
