"""Streaming: split a stream anywhere, save and load its state, crop tokens and select batch elements.

python examples/streaming.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from stairwell import LanguageModel, LanguageModelConfig, StaircaseConfig, State


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    core = StaircaseConfig(width=32, heads=4, layers=2, chunk=4, passes=3)
    model = LanguageModel(LanguageModelConfig(core=core, inputs=50)).double().eval()
    tokens = torch.randint(50, (3, 12))  # 3 streams of 12 tokens

    whole, after = model(tokens, model.init_state(3))
    state, steps = model.init_state(3), []
    for t in range(12):
        logits, state = model(tokens[:, t : t + 1], state)
        steps.append(logits)
    print(f"one call of 12 tokens and 12 calls of one differ by {difference(torch.cat(steps, 1), whole):.0e}")

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "stream.safetensors"
        after.save(file)
        loaded = State.load(file)
        print(f"a saved state is a file of {file.stat().st_size:,} bytes; it has read {loaded.count.tolist()} tokens")
    more = torch.randint(50, (3, 5))
    expected, _ = model(more, after)
    print(f"continuing from the loaded state differs by {difference(model(more, loaded)[0], expected):.0e}")

    # With max_crop, the last tokens of each stream can be removed, a different number per stream.
    _, state = model(tokens, model.init_state(3, max_crop=5))
    _, longer = model(more, state)
    cropped = longer.crop([5, 3, 0])
    print(f"after cropping 5, 3 and 0 of 17 tokens the counts are {cropped.count.tolist()}")
    print(f"stream 0 continues as if it had not read them: {difference(model(more, cropped)[0][0], expected[0]):.0e}")

    # Batch elements can be selected, repeated and reordered, as a beam search does with its hypotheses.
    picked = after.select([2, 0, 0])
    again, _ = model(more[[2, 0, 0]], picked)
    print(f"elements 2, 0, 0 of the state give the same logits: {difference(again, expected[[2, 0, 0]]):.0e}")
    after_reset = after.reset([1])
    print(f"after a reset of stream 1 the counts are {after_reset.count.tolist()}; {after_reset.nbytes:,} bytes in all")


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max())


if __name__ == "__main__":
    main()
