"""Stream with onnxruntime alone: neither PyTorch nor stairwell is needed.

stairwell export runs/lm-feedback --onnx model.onnx
python examples/onnx_streaming.py model.onnx "Once upon a time" 200

The graph reads one token a row. A fresh stream begins with zeros; each output `...N` is the next input of that name.
This example writes text for models of bytes or characters, and numbers for all others.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}


class Stream:
    """One row of a model, token by token."""

    def __init__(self, path: str) -> None:
        self.session = onnxruntime.InferenceSession(path)
        self.outputs = [output.name for output in self.session.get_outputs()]
        # One row; what grows, the size `tokens`, begins with one slot that nobody sees.
        sizes = {"batch": 1, "tokens": 1}
        self.state = {
            given.name: np.zeros([sizes.get(size, size) for size in given.shape], TYPES[given.type])
            for given in self.session.get_inputs()
            if given.name != "token"
        }

    def feed(self, token: int) -> np.ndarray:
        """Read a token; logits (V,) of what follows."""
        logits, *after = self.session.run(None, {"token": np.array([token]), **self.state})
        self.state = {name.removesuffix("N"): tensor for name, tensor in zip(self.outputs[1:], after)}
        return logits[0]


def main(path: str, prompt: str = "\n", tokens: str = "100", temperature: str = "0.8") -> None:
    stream, chance = Stream(path), np.random.default_rng(0)
    words = json.loads(stream.session.get_modelmeta().custom_metadata_map.get("vocabulary", "{}"))
    if words.get("type") == "bytes":
        ids, spell = list(prompt.encode()), lambda ids: bytes(ids).decode(errors="replace")
    elif words.get("type") == "characters":
        ids, spell = (
            [words["tokens"].index(letter) for letter in prompt],
            lambda ids: "".join(words["tokens"][i] for i in ids),
        )
    else:
        ids, spell = [0], lambda ids: " ".join(map(str, ids))
    written = []
    for token in ids:
        logits = stream.feed(token)
    for _ in range(int(tokens)):
        chances = np.exp((logits - logits.max()) / float(temperature), dtype=np.float64)
        written.append(int(chance.choice(len(chances), p=chances / chances.sum())))
        logits = stream.feed(written[-1])
    print(spell(written))


if __name__ == "__main__":
    main(*sys.argv[1:])
