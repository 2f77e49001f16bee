"""Stream a model with onnxruntime and NumPy, without PyTorch or stairwell.

stairwell export runs/lm-feedback --onnx model.onnx
python examples/onnx_streaming.py model.onnx "Once upon a time" 200

The graph reads one token per stream. The initial state is zeros; each output `...N` is the next input of that name.
This example prints text for models of bytes or characters, and token ids for all others.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}


class Stream:
    """One stream of a model, token by token."""

    def __init__(self, path: str) -> None:
        self.session = onnxruntime.InferenceSession(path)
        self.outputs = [output.name for output in self.session.get_outputs()]
        # One stream. A cache that grows (size `tokens`) starts with one masked position.
        sizes = {"batch": 1, "tokens": 1}
        self.state = {
            given.name: np.zeros([sizes.get(size, size) for size in given.shape], TYPES[given.type])
            for given in self.session.get_inputs()
            if given.name != "token"
        }

    def feed(self, token: int) -> np.ndarray:
        """Read a token and return the logits (V,) of the next."""
        logits, *state = self.session.run(None, {"token": np.array([token]), **self.state})
        self.state = {name.removesuffix("N"): tensor for name, tensor in zip(self.outputs[1:], state)}
        return logits[0]


def main(path: str, prompt: str = "\n", tokens: str = "100", temperature: str = "0.8") -> None:
    stream, generator = Stream(path), np.random.default_rng(0)
    vocabulary = json.loads(stream.session.get_modelmeta().custom_metadata_map.get("vocabulary", "{}"))
    if vocabulary.get("type") == "bytes":
        ids, decode = list(prompt.encode()), lambda ids: bytes(ids).decode(errors="replace")
    elif vocabulary.get("type") == "characters":
        ids = [vocabulary["tokens"].index(character) for character in prompt]
        decode = lambda ids: "".join(vocabulary["tokens"][i] for i in ids)  # noqa: E731
    else:
        ids, decode = [0], lambda ids: " ".join(map(str, ids))
    generated = []
    for token in ids:
        logits = stream.feed(token)
    for _ in range(int(tokens)):
        weights = np.exp((logits - logits.max()) / float(temperature), dtype=np.float64)
        generated.append(int(generator.choice(len(weights), p=weights / weights.sum())))
        logits = stream.feed(generated[-1])
    print(decode(generated))


if __name__ == "__main__":
    main(*sys.argv[1:])
