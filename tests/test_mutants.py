"""Tests of mutants (tools/mutate.py) that no other test killed: a number, a sign or a comparison was changed."""

from __future__ import annotations

import json
import math
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stairwell import (
    CachedStaircaseConfig,
    FeedbackConfig,
    LanguageModel,
    LanguageModelConfig,
    LSTMConfig,
    build,
    text,
)
from stairwell.cores import GlobalCachedStaircaseConfig, StaircaseConfig
from stairwell.decode import Session
from stairwell.errors import UserError
from stairwell.experiments import measures
from stairwell.layers import Masks
from stairwell.models import IGNORE, Seq2Seq, Seq2SeqConfig
from stairwell.models.embedding import StartEmbedding
from stairwell.models.encoder import EncoderConfig, relative_scores
from stairwell.provenance import provenance
from stairwell.runs.run import Run
from stairwell.tasks import groups
from stairwell.tasks.base import TokenBatch
from stairwell.tasks.language import LanguageScore
from stairwell.tasks.pair_task import PairBatch, buckets
from stairwell.tasks.random_walk import FORWARD, LEFT, RIGHT, trajectory
from stairwell.tasks.translation import TranslationConfig
from stairwell.train.distributed import Distributed
from stairwell.train.pair_objective import GREEDY, PairCrossEntropy, PairValidation
from stairwell.train.streams import CrossEntropy
from stairwell.train.translator import SEARCH, Search, Translator, load_search
from tests.train.test_loop import trainer

BITS = {"bits_per_character": 0.5 / math.log(2)}
PERPLEXITY = {"perplexity": math.exp(0.5)}
UNITS: dict[Any, dict[str, float]] = {"bytes": BITS, "characters": BITS, "words": PERPLEXITY, "bpe": PERPLEXITY}
CORE = FeedbackConfig(width=8, heads=2, layers=2, memory=3)


def test_a_step_uses_the_learning_rate_of_the_schedule(tmp_path: Path) -> None:
    run = trainer(tmp_path, train__warmup=4, train__learning_rate=0.5)
    rates = []
    for _ in range(5):
        run.train_step()
        rates.append(run.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5])


def test_the_gradient_of_a_single_term_is_not_scaled(tmp_path: Path) -> None:
    run = trainer(tmp_path, "counting/lstm", task__length=3, train__max_grad_norm=0, train__batch=1, train__segment=1)
    batch = run.batch_source.read(1)
    while int((batch.targets != IGNORE).sum()) != 1:
        batch = run.batch_source.read(1)
    nll, _ = run.model.nll(batch.tokens, batch.targets, run.model.init_state(1), batch.start)
    expected = torch.autograd.grad(nll.sum(), list(run.model.parameters()))
    run.batch_source.read = lambda length: batch  # type: ignore[method-assign]
    run.train_step()
    for gradient, parameter in zip(expected, run.model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_the_accuracy_of_a_stream_is_in_percent() -> None:
    objective = CrossEntropy(LanguageModel(LanguageModelConfig(core=CORE, inputs=3)))
    assert objective.summary({"correct": 3.0}, 4) == {"accuracy": 75.0}


def test_signal_handlers_are_restored_after_training(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    trainer(tmp_path).run()
    assert {number: signal.getsignal(number) for number in before} == before


def test_only_models_that_skip_parameters_are_reported_as_such() -> None:
    def skips(**model: Any) -> bool:
        return CrossEntropy(
            LanguageModel(LanguageModelConfig(**{"core": CORE, "inputs": 30, **model}))
        ).skips_parameters

    assert skips(adaptive=(10, 20))
    assert skips(core=FeedbackConfig(width=8, heads=2, layers=2, memory=3, layer_drop=0.2))
    assert not skips() and not skips(core=LSTMConfig(width=8))


def pair_objective() -> PairCrossEntropy:
    torch.manual_seed(0)
    config = Seq2SeqConfig(core=CORE, sources=7, targets=7, encoder_layers=1, encoder_heads=2)
    return PairCrossEntropy(Seq2Seq(config))


def test_a_dry_run_of_pairs_works() -> None:
    pair_objective().dry_run()


def test_correct_target_tokens_are_counted() -> None:
    objective = pair_objective()
    source, tokens = torch.randint(7, (2, 4)), torch.randint(7, (2, 3))
    state = objective.model.init_state(2, source)
    targets = objective.model(tokens, state)[0].argmax(-1)
    targets[0, 0] = (targets[0, 0] + 1) % 7
    targets[1, 2] = IGNORE
    outcome = objective(PairBatch(source, torch.ones(2, 4, dtype=torch.bool), tokens, targets))
    assert int(outcome.metrics["correct"]) == 4


def test_a_batch_of_pairs_is_as_large_as_possible() -> None:
    lengths = np.array([[4, 3]] * 10)
    assert [len(batch) for batch in buckets(lengths, np.arange(10), max_tokens=12, max_pairs=99)] == [3, 3, 3, 1]
    assert [len(batch) for batch in buckets(lengths, np.arange(10), max_tokens=11, max_pairs=99)] == [2, 2, 2, 2, 2]


def test_search_defaults_are_the_documented_ones() -> None:
    assert Search().lengths(5, 100) == (0, 25) and Search().beam == 5 and GREEDY.beam == 1


def test_a_damaged_search_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / SEARCH).write_text(json.dumps({"beam": "many"}))
    with pytest.raises(UserError, match="tune the run again"):
        load_search(tmp_path, type("Task", (), {"search_defaults": {}})())  # type: ignore[arg-type]


def test_a_walk_starts_in_the_first_cell_facing_east() -> None:
    assert trajectory([FORWARD, LEFT, RIGHT, RIGHT, FORWARD], grid=8) == ([1, 1, 1, 1, 9], [0, 1, 0, 3, 3])


def test_units_have_bits_per_character_or_perplexity() -> None:
    batch = TokenBatch(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64), None)
    for unit, expected in UNITS.items():
        score = LanguageScore(unit, text.Bytes())
        score.add(batch, torch.full((1, 2), 0.5), torch.zeros(1, 2, dtype=torch.int64))
        assert score.result() == {"loss": 0.5, "scored": 2, **expected}


@pytest.mark.parametrize(("which", "steps"), [("last", [4, 5]), ("best", [2, 3])])
def test_the_last_or_the_best_models_are_averaged(which: str, steps: list[int], tmp_path: Path) -> None:
    run = trainer(tmp_path, train__average=2, train__average_of=which, train__validate_every=1, train__steps=5)
    scores = iter([9.0, 1.0, 2.0, 3.0, 8.0])
    run.validation = Fixed(lambda: {"loss": next(scores, 5.0)})  # type: ignore[assignment]
    run.run()
    assert [int(path.stem.removeprefix("step-")) for path in run.folder.snapshots()] == steps


class Fixed:
    primary_metric, higher_is_better = "loss", False

    def __init__(self, score: Any) -> None:
        self.score = score

    def __call__(self, model: Any, split: str) -> dict[str, float]:
        return dict(self.score())


def test_croppable_grows_with_every_token() -> None:
    core = build(CORE)
    _, state = core(torch.randn(1, 2, 8), core.init_state(1, max_crop=8))
    _, state = core(torch.randn(1, 3, 8), state)
    assert int(state.croppable) == 5
    state.crop(5)
    with pytest.raises(ValueError, match="crop"):
        state.crop(6)


def test_every_residual_sum_has_its_own_dropout_mask() -> None:
    core = build(FeedbackConfig(width=64, heads=2, layers=2, memory=3, residual_dropout=0.5)).train()
    masks = core.sample_masks(torch.randn(2, 4, 64), core.init_state(2), None)
    assert isinstance(masks, Masks)
    first = masks.for_layer(0, 0, 4).residual
    assert first is not None and len(first) == 2 and not torch.equal(first[0], first[1])
    layer, layer_masks = core.layers[0], masks.for_layer(0, 0, 4)
    used: list[torch.Tensor] = []
    layer.residual = lambda x, norm, sublayer, mask: used.append(mask) or x  # type: ignore[method-assign, func-returns-value]
    layer(torch.randn(2, 4, 64), torch.zeros_like, None, torch.zeros_like, layer_masks)
    assert [torch.equal(mask, expected) for mask, expected in zip(used, first, strict=True)] == [True, True]


def test_relative_scores_depend_on_the_distance() -> None:
    q = torch.ones(1, 1, 4, 1, dtype=torch.float64)
    distances = torch.arange(5, dtype=torch.float64)[:, None]  # the embedding of distance d is d + 2
    scores = relative_scores(q, distances)[0, 0]
    assert scores.tolist() == [[2, 3, 4, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 0, 1, 2]]


def test_defaults_are_the_papers() -> None:
    assert (StaircaseConfig().chunk, CachedStaircaseConfig().compute) == (32, 1)
    assert (GlobalCachedStaircaseConfig().compute, GlobalCachedStaircaseConfig().distances) == (1, 512)
    assert measures.STREAMS == {False: 50, True: 16}
    assert measures.LargestSolved("", "length", ()).threshold == 90


@pytest.mark.parametrize(
    "make",
    [
        lambda: LSTMConfig(width=0),
        lambda: LSTMConfig(layers=0),
        lambda: LSTMConfig(dropout=1.0),
        lambda: GlobalCachedStaircaseConfig(chunk=0),
        lambda: GlobalCachedStaircaseConfig(distances=0),
        lambda: EncoderConfig(encoder_dropout=1.0),
        lambda: EncoderConfig(encoder_relu_drop=-0.1),
        lambda: LanguageModelConfig(core=CORE, inputs=0),
        lambda: LanguageModelConfig(core=CORE, inputs=0, outputs=3),
        lambda: LanguageModelConfig(core=CORE, inputs=3, outputs=0),
        lambda: TranslationConfig(max_source_length=0),
        lambda: TranslationConfig(max_target_length=0),
    ],
)
def test_invalid_sizes_and_rates_are_rejected(make: Any) -> None:
    with pytest.raises(ValueError):
        make()
    LanguageModelConfig(core=CORE, inputs=1, outputs=1)


def test_a_single_process_is_on_the_cpu_by_default() -> None:
    assert Distributed().device == torch.device("cpu")
    assert Distributed(device=torch.device("meta")).device == torch.device("meta")


def test_decoding_speed_counts_the_decoded_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(tmp_path, "parity/feedback")
    monkeypatch.setattr(measures, "load", lambda *_: (run.model.eval(), None))
    steps: list[int] = []
    step = Session.step
    monkeypatch.setattr(Session, "step", lambda self, tokens: (steps.append(1), step(self, tokens))[1])
    measures.DecodingSpeed("", state_bytes=1, steps=7).measure(run.folder, "cpu", "auto")
    assert len(steps) == 3 + 7


def test_the_start_embedding_is_added_to_the_first_token_only() -> None:
    embedding = StartEmbedding(2)
    torch.nn.init.ones_(embedding.vector)
    since_start = torch.tensor([[0, 1, 2], [3, 0, 1]])
    assert embedding(torch.zeros(2, 3, 2), since_start)[..., 0].tolist() == [[1, 0, 0], [0, 1, 0]]


def test_the_generators_of_the_groups_are_permutations() -> None:
    for group in ("S5", "A5", "A6", "Z7", "D6", "A5xZ2"):
        for generator in groups.generators(group):
            assert sorted(generator) == list(range(len(generator)))


def test_a_nan_within_a_learned_span_propagates() -> None:
    core = build(FeedbackConfig(width=8, heads=2, layers=1, memory=4, adaptive_span=True))
    core.engine = None
    x = torch.randn(1, 3, 8)
    x[0, 0] = torch.nan
    assert core(x, core.init_state(1))[0][0, 1].isnan().all()


@pytest.mark.parametrize("max_length", [1, 3])
def test_a_target_has_at_most_max_length_tokens(max_length: int) -> None:
    """The end token is not counted."""
    vocabulary: Any = type("Vocabulary", (), {"target": text.Bytes(), "source": text.Bytes()})()
    decoded: list[list[int]] = []
    task: Any = type("Task", (), {
        "end": 3, "vocabulary": vocabulary, "config": TranslationConfig(max_target_length=50),
        "normalize": staticmethod(str),
        "encode_sources": staticmethod(lambda texts: ([np.array([1, 2, 3])] * len(texts), 0)),
        "decode_target": staticmethod(lambda tokens: decoded.append(list(tokens)) or ""),
    })()  # fmt: skip
    config = Seq2SeqConfig(core=CORE, sources=4, targets=4, encoder_layers=1, encoder_heads=2, tied="none")
    model = Seq2Seq(config)
    with torch.no_grad():
        model.head.bias[3] = -100.0  # type: ignore[index]
    list(Translator(model, task, Search(beam=1, max_length=max_length)).translate(["x"]))
    assert [len(tokens) for tokens in decoded] == [max_length]


def test_a_checkpoint_of_another_model_is_rejected(tmp_path: Path) -> None:
    small, large = trainer(tmp_path / "a"), trainer(tmp_path / "b", core__width=16)
    small.run()
    large.folder.path.mkdir(parents=True)
    (large.folder.path / "checkpoints").symlink_to(small.folder.path / "checkpoints")
    with pytest.raises(UserError, match="does not fit the model"):
        large.resume()


def test_states_of_accumulated_parts_are_resumed(tmp_path: Path) -> None:
    run = trainer(tmp_path, "random-walk/lstm", train__accumulate=2)
    run.run()
    again = trainer(tmp_path, "random-walk/lstm", train__accumulate=2)
    again.resume()
    for ours, theirs in zip(again.objective.states, run.objective.states, strict=True):
        assert all(a.equal(b) for (_, a), (_, b) in zip(ours.tensors(), theirs.tensors(), strict=True))


@pytest.mark.parametrize("primary_metric", ["loss", "bleu"])
def test_a_missing_scorer_of_the_primary_metric_is_rejected_at_the_start(
    primary_metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setattr("stairwell.tasks.text_scores.installed", lambda name: False)
    config = TranslationConfig(primary_metric=primary_metric)  # type: ignore[arg-type]
    task: Any = type(
        "Task", (), {"primary_metric": primary_metric, "higher_is_better": True, "metric": "bleu", "config": config}
    )()
    if primary_metric == "loss":
        assert PairValidation(task).examples == 0
        return
    with pytest.raises(UserError, match="sacrebleu is not installed"):
        PairValidation(task)


def test_the_final_phase_starts_with_its_first_step(tmp_path: Path) -> None:
    run = trainer(tmp_path, train__steps=2, train__finetune_steps=2)
    phases: list[int] = []
    train_step = run.train_step
    run.train_step = lambda: (phases.append(run.progress.phase), train_step())  # type: ignore[method-assign, assignment, return-value]
    run.run()
    assert phases == [0, 0, 1, 1]


def test_an_unreadable_config_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(UserError, match="cannot read"):
        Run(tmp_path).read_config()


@pytest.mark.parametrize("program", ["/anywhere/bin/stairwell", "/anywhere/stairwell/__main__.py"])
def test_the_command_in_a_result_has_no_local_paths(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [program, "reproduce", "extra.s5", "--out", "/home/me/runs", "--only", "Cached Staircase"]
    monkeypatch.setattr(sys, "argv", given)
    assert provenance()["command"] == "stairwell reproduce extra.s5 --only 'Cached Staircase'"
