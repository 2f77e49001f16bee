"""Options of the OpenAI completions API that change the logits before a token is sampled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LogitsProcessor:
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits, per token id."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token generated before."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token once for each time it was generated before."""
    min_p: float = 0.0
    """Tokens below this fraction of the highest probability are not sampled."""
    temperature: float = 1.0
    """Sampling temperature. `min_p` applies to the distribution at this temperature."""

    def __call__(self, logits: Tensor, generated: Mapping[int, int]) -> Tensor:
        """Return new logits (V,). `generated` has the number of times each token id was generated before."""
        offsets = dict(self.logit_bias)
        if self.presence_penalty or self.frequency_penalty:
            for token, times in generated.items():
                penalty = self.presence_penalty + times * self.frequency_penalty
                offsets[token] = offsets.get(token, 0.0) - penalty
        if offsets:
            index = torch.tensor([*offsets], device=logits.device)
            values = torch.tensor([*offsets.values()], dtype=logits.dtype, device=logits.device)
            logits = logits.index_add(0, index, values)
        if self.min_p and self.temperature:
            threshold = logits.max() + self.temperature * math.log(self.min_p)
            logits = logits.masked_fill(logits < threshold, -math.inf)
        return logits
