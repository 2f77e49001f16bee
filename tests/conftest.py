"""Small tensors gain nothing from many threads, and threads that wait for each other make a busy machine slow."""

import torch

torch.set_num_threads(1)
