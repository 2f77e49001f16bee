"""A stairwell core as the memory of an agent in TorchRL.

    memory = MemoryModule(FeedbackConfig(width=32, heads=2, layers=1, memory=4), input_size=9)
    env = TransformedEnv(env, Compose(InitTracker(), memory.make_tensordict_primer()))
    actor = ProbabilisticActor(TensorDictSequential(memory, head), ...)

Tensordicts hold the memory as one vector per environment, under the key `memory`; `is_init` marks the first frame of an
episode, where the memory is reset. One frame per environment, (B,), or of a single environment, (), is a step of a
rollout; segments (B, T) are processed in one call from the memory stored with their first frame. `data[None]` makes a
segment of the rollout (T,) of a single environment.

`GAE` needs `shifted=True`, which evaluates values and next values in one pass over each segment:

    GAE(gamma=0.99, lmbda=0.95, value_network=value_network, shifted=True, shifted_budget=4)

`shifted_budget` is 1 plus the number of truncated episodes in a segment; with fewer, GAE masks the last frames of the
segment (`shifted_valid`). Where an episode starts in the last frame of a segment, TorchRL resets the memory for the
value after it, too. Without `shifted` TorchRL evaluates the next observations as segments of their own, in which the
memory lacks the first frame of each episode: vmap raises an error, `deactivate_vmap=True` returns wrong advantages.
Letters: B environments, T frames, N numbers of a packed memory.
"""

from __future__ import annotations

from typing import Any

import torch

from stairwell.configs import Config
from stairwell.errors import MissingPackage

from .memory import MemoryGRU

try:
    from tensordict import TensorDictBase
    from tensordict.nn import TensorDictModuleBase
    from torchrl.data import Unbounded
    from torchrl.envs import TensorDictPrimer
except ImportError as missing:
    raise MissingPackage(f"this module needs TorchRL ({missing})", "torchrl>=0.10") from None


class MemoryModule(TensorDictModuleBase):
    """A memory for tensordicts. It reads `in_key`, `memory` and `is_init`, and writes `out_key` and the next memory.

    Args:
        core: Config of the core, such as `FeedbackConfig(width=32, heads=2, layers=1, memory=4)`.
        input_size: Number of features of the input.
        in_key: Key of the input, (..., input_size).
        out_key: Key of the output, (..., width of the core).
        engine: `auto`, `fast` or `reference`.

    Tensordicts have batch size (B,) or () for one frame, and (B, T) for segments. Use TorchRL's `GAE` with
    `shifted=True`."""

    def __init__(
        self,
        core: Config,
        input_size: int,
        in_key: str = "observation",
        out_key: str = "features",
        engine: str = "auto",
    ) -> None:
        super().__init__()
        self.in_key, self.out_key = in_key, out_key
        self.in_keys = [in_key, "memory", "is_init"]
        self.out_keys = [out_key, ("next", "memory")]
        self.gru = MemoryGRU(core, input_size, batch_first=True, engine=engine)

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """Return the transform that adds an initial memory to the tensordicts of an environment."""
        spec = Unbounded(shape=(self.gru.hidden_size,))
        return TensorDictPrimer({"memory": spec}, default_value=0.0, expand_specs=True)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        x, memory, start = tensordict[self.in_key], tensordict["memory"], tensordict["is_init"][..., 0]
        if torch._C._functorch.is_batchedtensor(x):
            raise RuntimeError(
                "MemoryModule does not support vmap, by which GAE evaluates values and next values; use "
                "GAE(..., shifted=True), which evaluates them in one pass over each segment"
            )
        batch_size = tensordict.batch_size
        if len(batch_size) > 2:
            raise ValueError(f"the tensordict has batch size {tuple(batch_size)}; it must be (), (B,) or (B, T)")
        is_segment = len(batch_size) == 2
        if not is_segment:  # one frame of one or several environments
            x, memory, start = (
                x.reshape(-1, 1, x.shape[-1]),
                memory.reshape(-1, 1, memory.shape[-1]),
                start.reshape(-1, 1),
            )
        dtype: Any = next(self.gru.parameters()).dtype
        y, next_memory = self.gru(x.to(dtype), memory[None, :, 0], start)
        tensordict[self.out_key] = y if is_segment else y.view(*batch_size, -1)
        if not is_segment:
            tensordict["next", "memory"] = next_memory.view(*batch_size, -1)
        return tensordict
