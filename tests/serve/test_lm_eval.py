"""The scores of EleutherAI's lm_eval through the server equal those of the model itself."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from stairwell.decode import Sampling
from stairwell.generate import generate_text
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
        results = evaluate.evaluate(address, "proverbs", tmp_path / "out")
    sys.modules.pop("evaluate")

    cases = [json.loads(line) for line in (FOLDER / "proverbs.jsonl").read_text().splitlines()]

    def nll(text: str, before: str) -> float:
        stream = Stream.open(run, "cpu")
        stream.feed(before)
        return float(stream.token_losses(text).sum())

    chosen = [min(range(4), key=lambda i: nll(f" {case['endings'][i]}", case["beginning"])) for case in cases]
    acc = sum(i == case["right"] for i, case in zip(chosen, cases)) / len(cases)
    assert results["proverbs_choice"]["acc,none"] == acc > 0.5

    greedy = Sampling(temperature=0)
    texts = ["".join(generate_text(run, case["beginning"], 32, greedy, ["\n"], device="cpu")) for case in cases]
    exact = sum(text == f" {case['endings'][case['right']]}" for text, case in zip(texts, cases)) / len(cases)
    assert results["proverbs_end"]["exact_match,none"] == exact > 0

    nats = sum(nll(case["line"], "\n") for case in cases)
    bits = nats / math.log(2) / sum(len(case["line"].encode()) for case in cases)
    assert results["proverbs_bits"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-4)
