"""Sequence-to-sequence models: padding, splits, losses and dropout, with every core as decoder."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell.cores import CORES
from stairwell.fast import linear
from stairwell.models import IGNORE_INDEX, Seq2Seq, Seq2SeqConfig, inspect
from stairwell.models.encoder import relative_scores, sinusoids

pytestmark = pytest.mark.quick

SIZES: dict[str, Any] = {"width": 8, "layers": 2}
DECODERS = {
    "feedback": {"heads": 2, "memory": 6},
    "transformer-xl": {"heads": 2, "memory": 6},
    "staircase": {"heads": 2, "chunk": 2, "passes": 3},
    "cached-staircase": {"heads": 2, "chunk": 2, "passes": 3},
    "global-cached-staircase": {"heads": 2, "chunk": 2},
    "universal": {"heads": 2, "memory": 6, "passes": 2},
    "lstm": {},
    "deltanet": {"heads": 2},
}
ENCODERS: list[dict[str, Any]] = [
    {"encoder_positions": "sinusoidal", "encoder_norm": "pre"},
    {"encoder_positions": "relative", "encoder_norm": "post", "encoder_distance": 3},
]
LENGTHS = [(5, 3), (2, 6), (7, 4)]  # of source and target
V = 11


def make(core: str, engine: str = "auto", **options: Any) -> Seq2Seq:
    torch.manual_seed(0)
    config = CORES[core].config(**SIZES, **DECODERS[core])
    options = {"encoder_layers": 2, "encoder_heads": 2, "sources": V, "targets": V, **options}
    model = Seq2Seq(Seq2SeqConfig(core=config, **options), engine).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # parameters that are initially zero should have an effect
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def sentences() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return sources, inputs and targets of different lengths, with batch size 1."""
    generator = torch.Generator().manual_seed(1)

    def sample(length: int) -> Tensor:
        return torch.randint(V, (1, length), generator=generator)

    return [(sample(J), sample(T), sample(T)) for J, T in LENGTHS]


def padded(sequences: list[Tensor], value: int) -> Tensor:
    longest = max(s.shape[1] for s in sequences)
    return torch.cat([torch.nn.functional.pad(s, (0, longest - s.shape[1]), value=value) for s in sequences])


def gradients(model: Seq2Seq, losses: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    losses.sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("encoder", ENCODERS, ids=["sinusoidal", "relative"])
@pytest.mark.parametrize("engine", ["reference", "auto"])
@pytest.mark.parametrize("core", DECODERS)
def test_padding_has_no_effect(core: str, engine: str, encoder: dict[str, Any]) -> None:
    model = make(core, engine, **encoder)
    pairs = sentences()
    alone = [
        model.losses(tokens, targets, model.init_state(1, source), 0.1)[0].sum() for source, tokens, targets in pairs
    ]
    expected = gradients(model, torch.stack(alone))
    sources, tokens, targets = zip(*pairs)
    mask = padded([torch.ones_like(source) for source in sources], 0).bool()
    # Padding may even be an id outside the vocabulary.
    source = padded(list(sources), 10**6)
    state = model.init_state(len(pairs), source, mask)
    batched = model.losses(padded(list(tokens), 3), padded(list(targets), IGNORE_INDEX), state, 0.1)[0]
    torch.testing.assert_close(batched.sum(1), torch.stack(alone))
    actual = gradients(model, batched)
    assert actual.keys() == expected.keys() == dict(model.named_parameters()).keys()
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("encoder", ENCODERS, ids=["sinusoidal", "relative"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", [[5, 2, 7], [7, 7, 7], [0, 3, 1]])
def test_encoding_is_the_same_with_and_without_gradients(
    lengths: list[int], dtype: torch.dtype, encoder: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without gradients padding is removed and matrix products use oneDNN."""
    monkeypatch.setattr(linear, "ONEDNN_MIN_PRODUCTS", 0)
    model = make("feedback", **encoder).to(dtype)
    source = torch.randint(V, (3, 7), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    expected = model.encode(source, mask).detach()
    tokens: list[int] = []
    model.encoder.norm.register_forward_hook(lambda *call: tokens.append(call[2].shape[:-1].numel()))
    with torch.no_grad():
        torch.testing.assert_close(model.encode(source, mask), expected)
    assert tokens == [sum(lengths)]


@pytest.mark.parametrize("core", DECODERS)
def test_any_split_of_a_target_gives_the_same_logits(core: str) -> None:
    model = make(core)
    source, tokens = torch.randint(V, (2, 5)), torch.randint(V, (2, 7))
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    whole, last = model(tokens, model.init_state(2, source, mask))
    state, segments = model.init_state(2, source, mask), []
    for segment in tokens.split([1, 4, 1, 1], 1):
        logits, state = model(segment, state)
        segments.append(logits)
    torch.testing.assert_close(torch.cat(segments, 1), whole)
    torch.testing.assert_close(dict(state.tensors()), dict(last.tensors()))


@pytest.mark.parametrize("core", DECODERS)
def test_the_source_and_its_order_have_an_effect(core: str) -> None:
    model = make(core)
    tokens = torch.randint(V, (1, 4))
    first = model(tokens, model.init_state(1, torch.tensor([[1, 2, 3]])))[0]
    for other in ([[1, 2, 4]], [[3, 2, 1]]):
        assert not torch.allclose(model(tokens, model.init_state(1, torch.tensor(other)))[0], first)


def test_a_start_does_not_reset_the_source() -> None:
    model = make("feedback")
    source, tokens = torch.randint(V, (2, 5)), torch.randint(V, (2, 6))
    start = torch.zeros(2, 6, dtype=torch.bool)
    start[1, 3] = True
    logits, _ = model(tokens, model.init_state(2, source), start)
    expected, _ = model(tokens[1:, 3:], model.init_state(1, source[1:]))
    torch.testing.assert_close(logits[1:, 3:], expected)


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_second_derivatives_of_the_losses_raise(engine: str) -> None:
    """A gradient penalty with silently missing terms would train the wrong objective."""
    model = make("feedback", engine)
    source, tokens, targets = torch.randint(V, (2, 5)), torch.randint(V, (2, 6)), torch.randint(V, (2, 6))
    losses = model.losses(tokens, targets, model.init_state(2, source), 0.1)[0]
    parameter = model.embedding.vectors
    with pytest.raises(RuntimeError, match=r"no second derivatives .*; take the loss of the logits") as error:
        torch.autograd.grad(losses.sum(), parameter, create_graph=True)
    assert "\n" not in str(error.value)


def test_smoothed_losses_equal_torch_cross_entropy() -> None:
    model = make("feedback")
    source, tokens, targets = torch.randint(V, (2, 5)), torch.randint(V, (2, 6)), torch.randint(V, (2, 6))
    targets[1, 4:] = IGNORE_INDEX
    logits, _ = model(tokens, model.init_state(2, source))
    smoothed, nll, predictions, _ = model.losses(tokens, targets, model.init_state(2, source), 0.2)
    for actual, smoothing in ((smoothed, 0.2), (nll, 0.0)):
        expected = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=smoothing
        )
        torch.testing.assert_close(actual.flatten(), expected)
    assert torch.equal(predictions, logits.argmax(-1).masked_fill(targets == IGNORE_INDEX, IGNORE_INDEX))


def test_logits_in_blocks_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("feedback")
    source, tokens, targets = torch.randint(V, (2, 5)), torch.randint(V, (2, 6)), torch.randint(V, (2, 6))
    whole = gradients(model, model.losses(tokens, targets, model.init_state(2, source), 0.1)[0])
    monkeypatch.setattr("stairwell.models.language.MAX_LOGITS", 5 * V)
    blocks = gradients(model, model.losses(tokens, targets, model.init_state(2, source), 0.1)[0])
    torch.testing.assert_close(blocks, whole)


@pytest.mark.parametrize("tied, tables", [("all", 1), ("output", 2), ("none", 3)])
def test_tied_embeddings_are_shared(tied: Any, tables: int) -> None:
    model = make("feedback", tied=tied)
    assert sum(p.shape == (V, 8) for p in model.parameters()) == tables


def test_separate_vocabularies_cannot_share_embeddings() -> None:
    with pytest.raises(ValueError, match="tied output"):
        Seq2SeqConfig(sources=7, targets=9)
    with pytest.raises(ValueError, match="tied output"):
        Seq2SeqConfig(sources=9, targets=9, joint=False)
    model = make("feedback", sources=7, targets=9, joint=False, tied="output")
    logits, _ = model(torch.zeros(1, 1, dtype=torch.int64), model.init_state(1, torch.tensor([[6]])))
    assert logits.shape == (1, 1, 9)


def test_encoder_layer_drop_skips_layers() -> None:
    model = make("feedback")
    encoder, x, mask = model.encoder, torch.randn(1, 3, 8).double(), torch.ones(1, 3, dtype=torch.bool)
    encoder.config = dataclasses.replace(encoder.config, encoder_layer_drop=0.999)
    torch.testing.assert_close(encoder.train()(x, mask), encoder.norm(x + sinusoids(x)))
    assert not torch.allclose(encoder.eval()(x, mask), encoder.norm(x + sinusoids(x)))


@pytest.mark.parametrize("rate", ["attn_drop", "relu_drop", "dropout"])
def test_every_dropout_of_the_encoder_has_an_effect(rate: str) -> None:
    model, plain = make("feedback", **{f"encoder_{rate}": 0.5}), make("feedback")
    source = torch.randint(V, (1, 5))
    torch.testing.assert_close(model.init_state(1, source).source, plain.init_state(1, source).source)
    model.train()
    assert not torch.allclose(model.init_state(1, source).source, plain.init_state(1, source).source)


def test_a_missing_source_raises() -> None:
    model = make("feedback")
    with pytest.raises(ValueError, match="needs a source"):
        model.init_state(1)
    with pytest.raises(ValueError, match="source token 11"):
        model.init_state(1, torch.tensor([[V]]))


@pytest.mark.parametrize("core", ["feedback", "lstm"])
def test_source_attention_can_be_inspected(core: str) -> None:
    """Padding gets no attention; the weights of each token sum to 1."""
    model = make(core).eval()
    source, tokens = torch.randint(3, (2, 5)), torch.randint(3, (2, 4))
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    with inspect(model) as recorder:
        model(tokens, model.init_state(2, source, mask))
    for weights in recorder.source_attention:
        assert weights.shape[0] == 2 and weights.shape[2:] == (4, 5)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3], dtype=weights.dtype))
        assert not weights[1, :, :, 3:].any()
    assert recorder.source_attention


def test_relative_scores_depend_on_the_distance() -> None:
    q = torch.ones(1, 1, 4, 1, dtype=torch.float64)
    distances = torch.arange(5, dtype=torch.float64)[:, None]  # the embedding of distance d is d + 2
    scores = relative_scores(q, distances)[0, 0]
    assert scores.tolist() == [[2, 3, 4, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 0, 1, 2]]
