"""A stairwell core as the memory of an agent in TorchRL.

    memory = MemoryModule(FeedbackConfig(width=32, heads=2, layers=1, memory=4), input_size=9)
    env = TransformedEnv(env, Compose(InitTracker(), memory.make_tensordict_primer()))
    actor = ProbabilisticActor(TensorDictSequential(memory, head), ...)

Tensordicts hold the memory as one vector per environment, under the key `memory`; `is_init` marks the first frame of an
episode, where the memory is reset. One frame per environment, (B,), is a step of a rollout; segments (B, T) are
processed in one call from the memory stored with their first frame. Letters: B environments, T frames, N numbers of a
packed memory.
"""

from __future__ import annotations

from typing import Any

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
    """Reads `in_key`, `memory` and `is_init`; writes `out_key` and the next memory."""

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
        single = tensordict.dim() == 1
        if single:
            x, memory, start = x[:, None], memory[:, None], start[:, None]
        elif tensordict.dim() != 2:
            raise ValueError(f"the tensordict has batch size {tuple(tensordict.shape)}; it must be (B,) or (B, T)")
        dtype: Any = next(self.gru.parameters()).dtype
        y, next_memory = self.gru(x.to(dtype), memory[None, :, 0], start)
        tensordict[self.out_key] = y[:, 0] if single else y
        if single:
            tensordict["next", "memory"] = next_memory[0]
        return tensordict
