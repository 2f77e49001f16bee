"""What transformers asks of every model that generates. Its source distribution leaves its own tests of generation out,
so the same things are checked here, for causal models and for translators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")
from transformers.generation import (  # noqa: E402
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)

from stairwell.hf import StateCache  # noqa: E402
from tests.hf import test_causal, test_seq2seq  # noqa: E402

V, NEW = 11, 12
KINDS = [
    f"{kind} {core}" for kind in ("causal", "seq2seq") for core in ("feedback", "transformer-xl", "staircase", "lstm")
]
kinds = pytest.mark.parametrize("kind", KINDS)
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW}


def make(kind: str, seed: int = 0) -> Any:
    what, core = kind.split()
    return (test_causal if what == "causal" else test_seq2seq).make_model(core, seed)


def given(rows: int = 2) -> Tensor:
    return test_causal.prompts(rows)


def new(model: Any, said: Tensor) -> Tensor:
    """What follows the prompt, or the start symbol."""
    return said[:, 1 if model.config.is_encoder_decoder else given().shape[1] :]


@kinds
@pytest.mark.parametrize("beams", [1, 3])
def test_all_that_is_known_of_a_text_is_returned(kind: str, beams: int) -> None:
    model = make(kind)
    found = model.generate(
        given(), **GREEDY, num_beams=beams, return_dict_in_generate=True, output_scores=True, output_logits=True
    )
    causal = {1: GenerateDecoderOnlyOutput, 3: GenerateBeamDecoderOnlyOutput}
    paired = {1: GenerateEncoderDecoderOutput, 3: GenerateBeamEncoderDecoderOutput}
    assert type(found) is (paired if model.config.is_encoder_decoder else causal)[beams]
    assert isinstance(found.past_key_values, StateCache)
    assert len(found.scores) == len(found.logits) == NEW
    assert all(scores.shape == (2 * beams, V) for scores in found.scores)
    if beams == 1:
        assert torch.equal(torch.stack(found.logits, 1).argmax(-1), new(model, found.sequences))
    else:
        beam_indices = found.beam_indices
        steps = model.compute_transition_scores(found.sequences, found.scores, beam_indices, normalize_logits=False)
        torch.testing.assert_close(steps.sum(1) / NEW, found.sequences_scores)


@kinds
def test_scores_are_the_logits_of_one_call(kind: str) -> None:
    model = make(kind)
    found = model.generate(given(), **GREEDY, return_dict_in_generate=True, output_logits=True)
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            whole = model(given(), decoder_input_ids=found.sequences[:, :-1]).logits
        else:
            whole = model(found.sequences[:, :-1]).logits[:, -NEW:]
    torch.testing.assert_close(torch.stack(found.logits, 1), whole)


@kinds
def test_a_text_goes_on_from_a_returned_cache(kind: str) -> None:
    model = make(kind)
    whole = model.generate(given(), **GREEDY)
    first = model.generate(given(), do_sample=False, max_new_tokens=5, return_dict_in_generate=True)
    options: dict[str, Any] = {"past_key_values": first.past_key_values, "do_sample": False, "max_new_tokens": NEW - 5}
    if model.config.is_encoder_decoder:
        again = model.generate(given(), decoder_input_ids=first.sequences, **options)
    else:
        again = model.generate(first.sequences, **options)
    assert torch.equal(again, whole)


@kinds
def test_a_prompt_looked_up_changes_nothing(kind: str) -> None:
    """Drafts that are copied from the text itself; a core that cannot take tokens back says so."""
    model = make(kind)
    if "lstm" in kind:
        with pytest.raises(ValueError, match="cannot take tokens back"):
            model.generate(given(1), **GREEDY, prompt_lookup_num_tokens=3)
    else:
        assert torch.equal(
            model.generate(given(1), **GREEDY, prompt_lookup_num_tokens=3), model.generate(given(1), **GREEDY)
        )


@kinds
def test_an_end_ends_a_row_and_pads_it(kind: str) -> None:
    model = make(kind)
    plain = new(model, model.generate(given(), **GREEDY))
    end = int(plain[0, 3])
    said = new(model, model.generate(given(), **GREEDY, eos_token_id=end, pad_token_id=7))
    for row, before in zip(said.tolist(), plain.tolist()):
        kept = before.index(end) + 1 if end in before else len(before)
        assert row == [*before[:kept], *[7] * (kept < len(row) and len(row) - kept)][: len(row)]


@kinds
def test_processors_criteria_and_streamers_are_heard(kind: str) -> None:
    model = make(kind)
    seen: list[int] = []

    class Listener(transformers.generation.streamers.BaseStreamer):
        def put(self, value: Tensor) -> None:
            seen.extend(value.flatten().tolist())

        def end(self) -> None:
            seen.append(-1)

    said = model.generate(given(1), **GREEDY, streamer=Listener(), no_repeat_ngram_size=2, bad_words_ids=[[3]])
    assert seen == [*said[0].tolist(), -1]
    written = new(model, said)[0].tolist()
    assert 3 not in written
    pairs = list(zip(said[0].tolist(), said[0].tolist()[1:]))
    assert len(set(pairs[-NEW:])) == len(pairs[-NEW:])
    longest = transformers.StoppingCriteriaList([lambda ids, scores, **_: torch.full((len(ids),), ids.shape[1] >= 9)])
    assert model.generate(given(1), **GREEDY, stopping_criteria=longest).shape[1] == 9
    least = model.generate(
        given(1), do_sample=False, min_new_tokens=NEW, max_new_tokens=NEW, eos_token_id=int(written[0])
    )
    assert new(model, least).shape[1] == NEW


@kinds
def test_several_texts_of_rows_of_other_lengths(kind: str) -> None:
    model = make(kind)
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, :4] = 0
    torch.manual_seed(5)
    options = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 8, "do_sample": False}
    found = model.generate(given(), attention_mask=mask, **options)
    alone = model.generate(given()[1:, 4:], **options)
    assert torch.equal(found[2:, -8:], alone[:, -8:])


@pytest.mark.parametrize("core", ["feedback", "transformer-xl", "staircase", "lstm"])
def test_a_long_prompt_is_read_in_parts(core: str) -> None:
    model = make(f"causal {core}")
    assert torch.equal(model.generate(given(), **GREEDY, prefill_chunk_size=3), model.generate(given(), **GREEDY))


@pytest.mark.parametrize("core", ["feedback", "lstm"])
def test_nothing_but_a_beginning_is_needed(core: str) -> None:
    model = make(f"causal {core}")
    said = model.generate(bos_token_id=4, **GREEDY)
    assert torch.equal(said, model.generate(torch.tensor([[4]]), **GREEDY))


@kinds
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_generate(kind: str, dtype: torch.dtype) -> None:
    model = make(kind).to(dtype)
    assert model.generate(given(), **GREEDY, use_cache=True).shape[0] == 2
    if dtype == torch.float64:
        assert torch.equal(model.generate(given(), **GREEDY), model.generate(given(), **GREEDY, use_cache=False))
