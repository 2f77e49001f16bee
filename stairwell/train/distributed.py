"""The processes that train together: one, or as many as `torchrun` started. Rows are dealt among them."""

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

# The first process validates, averages and saves alone while the others wait in a collective. PyTorch's own limit, 10
# or 30 minutes, would end them during a long validation. If a process dies, torchrun ends the others at once.
LIMIT = timedelta(days=1)


class Distributed:
    """This process and its place among all. Everything here is trivial for a single process."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.size = rank, size
        self.device = device or torch.device("cpu")

    @staticmethod
    @contextmanager
    def together(device: torch.device) -> Iterator[Distributed]:
        """Meet the other processes if torchrun started this one. Within such a block further ones find them met: were
        the processes to part and meet again at the same port, a quick one could find the old meeting still there."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        met = dist.is_available() and dist.is_initialized()
        if size == 1 or met:
            yield Distributed(dist.get_rank() if met else 0, size, device)
            return
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=LIMIT)
        try:
            yield Distributed(dist.get_rank(), size, device)
        finally:
            dist.destroy_process_group()

    @property
    def first(self) -> bool:
        return self.rank == 0

    def rows(self, batch: int) -> range:
        """The rows that this process reads."""
        if batch % self.size:
            raise UserError(
                f"{self.size} processes cannot share {batch} rows equally; choose a multiple of {self.size}"
            )
        share = batch // self.size
        return range(self.rank * share, (self.rank + 1) * share)

    def sum(self, *numbers: float) -> list[float]:
        """Each number added up over all processes."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        return self.sum(int(flag))[0] > 0

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, which are alike in shape, in order."""
        if self.size == 1:
            return [tensor]
        if tensor.dtype == torch.bool:  # not every way between processes takes bools
            return [part.bool() for part in self.gather(tensor.to(torch.uint8))]
        tensor = tensor.to(self.device)
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous())
        return parts

    def gather_json(self, value: Any) -> list[Any]:
        """One plain value a process, in order."""
        if self.size == 1:
            return [value]
        text = json.dumps(value).encode()
        length = int(max(part.item() for part in self.gather(torch.tensor([len(text)]))))
        padded = torch.tensor(list(text.ljust(length)), dtype=torch.uint8)
        return [json.loads(bytes(part.cpu().tolist()).decode()) for part in self.gather(padded)]

    def share_json(self, value: Any) -> Any:
        """The first process's value, for all."""
        return self.gather_json(value)[0]

    def gather_state(self, state: State) -> dict[str, Tensor]:
        """All rows of all processes, in the order of the stream, padded as `State.join` does."""
        if self.size == 1:
            return dict(state.tensors())
        leaves = list(state.leaves())
        lengths = torch.tensor([leaf.length for leaf in leaves], device=self.device)
        dist.all_reduce(lengths, dist.ReduceOp.MAX)
        return {
            leaf.path: torch.cat(self.gather(leaf.pad(length)))
            for leaf, length in zip(leaves, lengths.tolist(), strict=True)
        }

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()
