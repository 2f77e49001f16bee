"""Data-parallel training: one process, or as many as `torchrun` started. The batch is split among them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stairwell.errors import UserError
from stairwell.state import State

# The main process validates, averages and saves alone while the others wait in a collective. PyTorch's own timeout of
# 10 or 30 minutes would end them during a long validation. If a process dies, torchrun ends the others at once.
TIMEOUT = timedelta(days=1)


class Distributed:
    """This process among all. With a single process every method is trivial."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.size = rank, size
        self.device = device or torch.device("cpu")

    @staticmethod
    @contextmanager
    def connect(device: torch.device) -> Iterator[Distributed]:
        """Connect to the other processes if torchrun started this one.

        A nested call uses the existing process group. Were it destroyed and created again at the same port, a fast
        process could connect to the old one."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        connected = dist.is_available() and dist.is_initialized()
        if size == 1 or connected:
            yield Distributed(dist.get_rank() if connected else 0, size, device)
            return
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
        try:
            yield Distributed(dist.get_rank(), size, device)
        finally:
            dist.destroy_process_group()

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def batch_indices(self, batch: int) -> range:
        """Return the batch elements of this process."""
        if batch % self.size:
            raise UserError(
                f"{self.size} processes cannot share a batch of {batch} equally; choose a multiple of {self.size}"
            )
        share = batch // self.size
        return range(self.rank * share, (self.rank + 1) * share)

    def sum(self, *numbers: float) -> list[float]:
        """Return the sum of each number over all processes."""
        if self.size == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        values: list[float] = sums.tolist()
        return values

    def any(self, flag: bool) -> bool:
        return self.sum(int(flag))[0] > 0

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, which have the same shape, by rank."""
        if self.size == 1:
            return [tensor]
        if tensor.dtype == torch.bool:  # some backends have no bool
            return [part.bool() for part in self.gather(tensor.to(torch.uint8))]
        tensor = tensor.to(self.device)
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous())
        return parts

    def gather_json(self, value: Any) -> list[Any]:
        """Return one JSON value per process, by rank."""
        if self.size == 1:
            return [value]
        text = json.dumps(value).encode()
        length = int(max(part.item() for part in self.gather(torch.tensor([len(text)]))))
        padded = torch.tensor(list(text.ljust(length)), dtype=torch.uint8)
        return [json.loads(bytes(part.cpu().tolist()).decode()) for part in self.gather(padded)]

    def broadcast_json(self, value: Any) -> Any:
        """Return the value of the main process."""
        return self.gather_json(value)[0]

    def gather_state(self, state: State) -> dict[str, Tensor]:
        """Return the state of the whole batch, padded as in `State.join`."""
        if self.size == 1:
            return dict(state.tensors())
        leaves = list(state.leaves())
        lengths = torch.tensor([leaf.length for leaf in leaves], device=self.device)
        dist.all_reduce(lengths, dist.ReduceOp.MAX)
        return {
            leaf.path: torch.cat(self.gather(leaf.pad(length)))
            for leaf, length in zip(leaves, lengths.tolist(), strict=True)
        }

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()
