"""EleutherAI's lm_eval, which nobody here wrote, finds through the server what the model says by itself."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from stairwell.generate import Choice, generate_text
from stairwell.stream import Stream

pytest.importorskip("lm_eval", reason="pip install 'lm_eval[api]' to run this")
pytest.importorskip("tenacity", reason="pip install 'lm_eval[api]' to run this")
FOLDER = Path(__file__).parents[2] / "examples/lm_eval"


@pytest.mark.slow
def test_lm_eval_scores_a_model_over_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parents[1]))
    evaluate = __import__("evaluate")
    run = evaluate.train(tmp_path)
    with evaluate.served(run) as address:
        found = evaluate.evaluate(address, "proverbs", tmp_path / "out")
    sys.modules.pop("evaluate")

    cases = [json.loads(line) for line in (FOLDER / "proverbs.jsonl").read_text().splitlines()]

    def cost(text: str, before: str) -> float:
        stream = Stream.open(run, "cpu")
        stream.feed(before)
        return float(stream.surprise(text).sum())

    chosen = [min(range(4), key=lambda i: cost(f" {case['endings'][i]}", case["beginning"])) for case in cases]
    acc = sum(i == case["right"] for i, case in zip(chosen, cases)) / len(cases)
    assert found["proverbs_choice"]["acc,none"] == acc > 0.5

    greedy = Choice(temperature=0)
    texts = ["".join(generate_text(run, case["beginning"], 32, greedy, ["\n"], device="cpu")) for case in cases]
    exact = sum(text == f" {case['endings'][case['right']]}" for text, case in zip(texts, cases)) / len(cases)
    assert found["proverbs_end"]["exact_match,none"] == exact > 0

    nats = sum(cost(case["line"], "\n") for case in cases)
    bits = nats / math.log(2) / sum(len(case["line"].encode()) for case in cases)
    assert found["proverbs_bits"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-4)
