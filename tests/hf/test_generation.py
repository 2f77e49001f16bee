"""The features of `generate` in transformers, for causal and sequence-to-sequence models. The package of transformers
does not include its own generation tests."""

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
from tests.hf import test_causal, test_encoder_decoder  # noqa: E402

V, NEW = 11, 12
MODELS = [
    f"{family} {core}"
    for family in ("causal", "seq2seq")
    for core in ("feedback", "transformer-xl", "staircase", "lstm")
]
models = pytest.mark.parametrize("model_name", MODELS)
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW}


def make(model_name: str, seed: int = 0) -> Any:
    family, core = model_name.split()
    return (test_causal if family == "causal" else test_encoder_decoder).make_model(core, seed)


def inputs(batch: int = 2) -> Tensor:
    return test_causal.prompts(batch)


def new_tokens(model: Any, sequences: Tensor) -> Tensor:
    """Return the tokens after the prompt, or after the start token."""
    return sequences[:, 1 if model.config.is_encoder_decoder else inputs().shape[1] :]


@models
@pytest.mark.parametrize("beams", [1, 3])
def test_generate_returns_scores_logits_and_the_cache(model_name: str, beams: int) -> None:
    model = make(model_name)
    output = model.generate(
        inputs(), **GREEDY, num_beams=beams, return_dict_in_generate=True, output_scores=True, output_logits=True
    )
    causal = {1: GenerateDecoderOnlyOutput, 3: GenerateBeamDecoderOnlyOutput}
    paired = {1: GenerateEncoderDecoderOutput, 3: GenerateBeamEncoderDecoderOutput}
    assert type(output) is (paired if model.config.is_encoder_decoder else causal)[beams]
    assert isinstance(output.past_key_values, StateCache)
    assert len(output.scores) == len(output.logits) == NEW
    assert all(scores.shape == (2 * beams, V) for scores in output.scores)
    if beams == 1:
        assert torch.equal(torch.stack(output.logits, 1).argmax(-1), new_tokens(model, output.sequences))
    else:
        beam_indices = output.beam_indices
        steps = model.compute_transition_scores(output.sequences, output.scores, beam_indices, normalize_logits=False)
        torch.testing.assert_close(steps.sum(1) / NEW, output.sequences_scores)


@models
def test_logits_equal_those_of_one_call(model_name: str) -> None:
    model = make(model_name)
    output = model.generate(inputs(), **GREEDY, return_dict_in_generate=True, output_logits=True)
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            whole = model(inputs(), decoder_input_ids=output.sequences[:, :-1]).logits
        else:
            whole = model(output.sequences[:, :-1]).logits[:, -NEW:]
    torch.testing.assert_close(torch.stack(output.logits, 1), whole)


@models
def test_generation_continues_from_a_returned_cache(model_name: str) -> None:
    model = make(model_name)
    whole = model.generate(inputs(), **GREEDY)
    first = model.generate(inputs(), do_sample=False, max_new_tokens=5, return_dict_in_generate=True)
    options: dict[str, Any] = {"past_key_values": first.past_key_values, "do_sample": False, "max_new_tokens": NEW - 5}
    if model.config.is_encoder_decoder:
        continued = model.generate(inputs(), decoder_input_ids=first.sequences, **options)
    else:
        continued = model.generate(first.sequences, **options)
    assert torch.equal(continued, whole)


@models
def test_prompt_lookup_does_not_change_greedy_generation(model_name: str) -> None:
    """Prompt lookup requires a core that supports crop."""
    model = make(model_name)
    if "lstm" in model_name:
        with pytest.raises(ValueError, match="does not support crop"):
            model.generate(inputs(1), **GREEDY, prompt_lookup_num_tokens=3)
    else:
        assert torch.equal(
            model.generate(inputs(1), **GREEDY, prompt_lookup_num_tokens=3), model.generate(inputs(1), **GREEDY)
        )


@models
def test_sequences_are_padded_after_the_end_token(model_name: str) -> None:
    model = make(model_name)
    plain = new_tokens(model, model.generate(inputs(), **GREEDY))
    end = int(plain[0, 3])
    ended = new_tokens(model, model.generate(inputs(), **GREEDY, eos_token_id=end, pad_token_id=7))
    for tokens, without_end in zip(ended.tolist(), plain.tolist()):
        n = without_end.index(end) + 1 if end in without_end else len(without_end)
        assert tokens == [*without_end[:n], *[7] * max(len(tokens) - n, 0)][: len(tokens)]


@models
def test_logits_processors_stopping_criteria_and_streamers(model_name: str) -> None:
    model = make(model_name)
    streamed: list[int] = []

    class Streamer(transformers.generation.streamers.BaseStreamer):
        def put(self, value: Tensor) -> None:
            streamed.extend(value.flatten().tolist())

        def end(self) -> None:
            streamed.append(-1)

    sequences = model.generate(inputs(1), **GREEDY, streamer=Streamer(), no_repeat_ngram_size=2, bad_words_ids=[[3]])
    assert streamed == [*sequences[0].tolist(), -1]
    generated = new_tokens(model, sequences)[0].tolist()
    assert 3 not in generated
    bigrams = list(zip(sequences[0].tolist(), sequences[0].tolist()[1:]))[-NEW:]
    assert len(set(bigrams)) == len(bigrams)
    criteria = transformers.StoppingCriteriaList([lambda ids, scores, **_: torch.full((len(ids),), ids.shape[1] >= 9)])
    assert model.generate(inputs(1), **GREEDY, stopping_criteria=criteria).shape[1] == 9
    sequences = model.generate(
        inputs(1), do_sample=False, min_new_tokens=NEW, max_new_tokens=NEW, eos_token_id=int(generated[0])
    )
    assert new_tokens(model, sequences).shape[1] == NEW


@models
def test_beams_of_padded_sequences(model_name: str) -> None:
    model = make(model_name)
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, :4] = 0
    torch.manual_seed(5)
    options = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 8, "do_sample": False}
    output = model.generate(inputs(), attention_mask=mask, **options)
    alone = model.generate(inputs()[1:, 4:], **options)
    assert torch.equal(output[2:, -8:], alone[:, -8:])


@pytest.mark.parametrize("core", ["feedback", "transformer-xl", "staircase", "lstm"])
def test_chunked_prefill(core: str) -> None:
    model = make(f"causal {core}")
    assert torch.equal(model.generate(inputs(), **GREEDY, prefill_chunk_size=3), model.generate(inputs(), **GREEDY))


@pytest.mark.parametrize("core", ["feedback", "lstm"])
def test_generation_without_a_prompt(core: str) -> None:
    model = make(f"causal {core}")
    sequences = model.generate(bos_token_id=4, **GREEDY)
    assert torch.equal(sequences, model.generate(torch.tensor([[4]]), **GREEDY))


@models
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(model_name: str, dtype: torch.dtype) -> None:
    model = make(model_name).to(dtype)
    assert model.generate(inputs(), **GREEDY, use_cache=True).shape[0] == 2
    if dtype == torch.float64:
        assert torch.equal(model.generate(inputs(), **GREEDY), model.generate(inputs(), **GREEDY, use_cache=False))
