"""Causal language models in transformers: caching, padding, packing, assisted decoding, Trainer and conversion."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell.configs import field_types
from stairwell.cores import CORES, config_type
from stairwell.errors import UserError
from stairwell.models import LanguageModelConfig
from stairwell.runs.launch import fit
from stairwell.runs.load import load
from stairwell.runs.presets import preset
from stairwell.text import BPE, Bytes, Characters, Words
from tests.invariants import scramble

transformers = pytest.importorskip("transformers")
from huggingface_hub import ModelCard  # noqa: E402

from stairwell.hf import (  # noqa: E402
    StairwellConfig,
    StairwellForCausalLM,
    StateCache,
    export_hf,
    from_run,
    to_run,
    tokenizer,
    vocabulary_of,
)

pytestmark = pytest.mark.quick

V = 11
SIZES: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2, "memory": 5, "chunk": 3, "passes": 2}
cores = pytest.mark.parametrize("name", sorted(CORES))
CROPPABLE = sorted(set(CORES) - {"lstm", "deltanet"})


def make_model(name: str = "feedback", seed: int = 0, **options: Any) -> StairwellForCausalLM:
    fields = field_types(config_type(name))
    sizes = {key: value for key, value in {**SIZES, **options}.items() if key in fields}
    if name == "memory-network":
        sizes["passes"] = 6
    if name == "universal":
        sizes["positions"] = "none"  # has a buffer instead of a parameter
    torch.manual_seed(seed)
    model = StairwellForCausalLM(StairwellConfig(core=name, core_options=sizes, vocab_size=V))
    scramble(model.model)
    return model.eval()


def prompts(batch: int = 2, tokens: int = 7) -> torch.Tensor:
    return torch.randint(V, (batch, tokens), generator=torch.Generator().manual_seed(1))


MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 6, "temperature": 0.9},
    "beam": {"num_beams": 3, "do_sample": False},
    "beam sampling": {"num_beams": 2, "do_sample": True},
    "several": {"do_sample": True, "num_return_sequences": 3},
}


@cores
@pytest.mark.parametrize("mode", MODES)
def test_generation_is_the_same_with_and_without_a_cache(name: str, mode: str) -> None:
    model = make_model(name)
    generated = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        generated.append(model.generate(prompts(), max_new_tokens=16, use_cache=use_cache, **MODES[mode]))
    assert torch.equal(*generated)
    assert generated[0].shape[1] == 23


def padded(sequences: list[torch.Tensor], length: int, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a padded batch and its attention mask. The padding token is not in the vocabulary."""
    tokens, mask = torch.full((len(sequences), length), 999), torch.zeros(len(sequences), length, dtype=torch.int64)
    generator = torch.Generator().manual_seed(4)
    for i, sequence in enumerate(sequences):
        first = length - len(sequence) if side == "left" else 0
        positions = torch.arange(first, first + len(sequence))
        if side == "between":
            positions = torch.randperm(length, generator=generator)[: len(sequence)].sort().values
        tokens[i, positions], mask[i, positions] = sequence, 1
    return tokens, mask


@cores
@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padding_anywhere_changes_nothing(name: str, side: str) -> None:
    model = make_model(name).double()
    sequences = [prompt[:length] for prompt, length in zip(prompts(3, 9), (9, 4, 1))]
    tokens, mask = padded(sequences, 10, side)
    cases: list[dict[str, Any]] = [{}, {"num_beams": 3}, {"use_cache": False}, {"prefill_chunk_size": 3}]
    options: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False}
    for case in cases:
        generated = model.generate(tokens, attention_mask=mask, pad_token_id=0, **options, **case)
        for sequence, alone in zip(generated, sequences):
            beams = case.get("num_beams", 1)
            assert torch.equal(sequence[10:], model.generate(alone[None], **options, num_beams=beams)[0, len(alone) :])
    with torch.no_grad():
        for use_cache in (True, False):
            logits = model(tokens, attention_mask=mask, use_cache=use_cache).logits
            for i, alone in enumerate(sequences):
                torch.testing.assert_close(logits[i, mask[i].bool()], model(alone[None]).logits[0])


@cores
def test_padding_may_change_from_call_to_call(name: str) -> None:
    """Some sequences have only padding in some calls."""
    model, tokens = make_model(name).double(), prompts(3, 12)
    mask = torch.tensor([[1] * 12, [1, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1]])
    cache, parts, start = StateCache(), [], 0
    with torch.no_grad():
        for end in (4, 5, 6, 7, 11, 12):
            # The mask may be that of all tokens or of the new ones.
            given = mask[:, :end] if end % 2 else mask[:, start:end]
            parts.append(model(tokens[:, start:end], attention_mask=given, past_key_values=cache).logits)
            start = end
        logits = torch.cat(parts, 1)
        for i in range(3):
            real = mask[i].bool()
            alone = model(tokens[i : i + 1, real]).logits[0]
            torch.testing.assert_close(logits[i, real], alone)
            torch.testing.assert_close(logits[i, -1], alone[-1])  # padding repeats the last real token's


def test_gradients_do_not_depend_on_padding() -> None:
    sequences = [prompt[:length] for prompt, length in zip(prompts(3, 9), (9, 4, 6))]
    gradients = []
    for side in ("left", "right", "between"):
        model = make_model("staircase").double().train()
        tokens, mask = padded(sequences, 11, side)
        logits = model(tokens, attention_mask=mask).logits
        logits[mask.bool()].square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0])


@pytest.mark.parametrize("name", ["feedback", "transformer-xl", "cached-staircase"])
def test_padding_does_not_change_assisted_decoding(name: str) -> None:
    model, draft = make_model(name).double(), make_model("feedback", seed=5).double()
    alone = model.generate(prompts(1), max_new_tokens=12, do_sample=False)
    for side in ("left", "right", "between"):
        tokens, mask = padded([prompts(1)[0]], 10, side)
        options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
        assert torch.equal(model.generate(tokens, assistant_model=draft, **options)[0, 10:], alone[0, 7:])


def test_crop_skips_padding() -> None:
    model, tokens = make_model().double(), prompts(2, 9)
    mask = torch.tensor([[1] * 7, [1, 1, 1, 1, 0, 1, 0]])
    cache = StateCache()
    cache.activate_past_recording()
    with torch.no_grad():
        model(tokens[:, :7], attention_mask=mask, past_key_values=cache)
        cache.crop(-3)  # one real token of the second sequence
        assert cache.get_seq_length() == 4
        with pytest.raises(ValueError, match="pass a real token first"):
            model(tokens[:, 4:5], attention_mask=torch.tensor([[1], [0]]), past_key_values=cache)
        logits = model(tokens[:, 7:], past_key_values=cache).logits
        remaining = torch.cat([tokens[:, :4], tokens[:, 7:]], 1)
        torch.testing.assert_close(logits, model(remaining).logits[:, 4:])


@pytest.mark.parametrize("name", CROPPABLE)
@pytest.mark.parametrize("tokens", [70, 5, 1])
def test_a_cropped_cache_equals_one_that_never_read_the_tokens(name: str, tokens: int) -> None:
    """Calls of more than 64 tokens use the model, shorter ones a decoding session."""
    model, text = make_model(name).double(), prompts(2, 12 + tokens)
    cache = StateCache()
    cache.activate_past_recording()
    with torch.no_grad():
        model(text[:, :10], past_key_values=cache)
        cache.crop(0)
        model(text[:, 10 : 10 + tokens], past_key_values=cache)
        back = min(tokens, 3)
        cache.crop(-back)
        assert cache.get_seq_length() == 10 + tokens - back
        logits = model(text[:, -2:], past_key_values=cache).logits
        remaining = torch.cat([text[:, : 10 + tokens - back], text[:, -2:]], 1)
        torch.testing.assert_close(logits, model(remaining).logits[:, -2:])


@cores
def test_packed_sequences_are_independent(name: str) -> None:
    model, tokens = make_model(name).double(), prompts(1, 12)
    position_ids = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 4]])
    parts = [model(tokens[:, first:last]).logits for first, last in ((0, 5), (5, 7), (7, 12))]
    torch.testing.assert_close(model(tokens, position_ids=position_ids).logits, torch.cat(parts, 1))
    with pytest.raises(ValueError, match="need position_ids"):
        model(tokens, seq_idx=torch.zeros(1, 12))


@cores
def test_a_copied_cache_is_independent(name: str) -> None:
    model, tokens = make_model(name).double(), prompts(2, 9)
    with torch.no_grad():
        cache = model(tokens[:, :6]).past_key_values
        model(tokens[:, 6:7], past_key_values=cache)
        copied = copy.deepcopy(cache)
        model(tokens[:, :3], past_key_values=cache)
        assert copied.get_seq_length() == 7 and copied.state.nbytes < 10**5
        torch.testing.assert_close(model(tokens[:, 7:], past_key_values=copied).logits, model(tokens).logits[:, 7:])


@cores
def test_a_returned_cache_continues(name: str) -> None:
    model, tokens = make_model(name), prompts(2, 12)
    with torch.no_grad():
        whole = model(tokens).logits
        first = model(tokens[:, :5])
        assert isinstance(first.past_key_values, StateCache) and first.past_key_values.get_seq_length() == 5
        parts = [first.logits]
        for t in range(5, 8):
            parts.append(model(tokens[:, t : t + 1], past_key_values=first.past_key_values).logits)
        parts.append(model(tokens[:, 8:], past_key_values=first.past_key_values).logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    assert model(tokens, use_cache=False).past_key_values is None
    torch.testing.assert_close(model(tokens, logits_to_keep=2).logits, whole[:, -2:])


@pytest.mark.parametrize("target", CROPPABLE)
def test_a_draft_does_not_change_greedy_generation(target: str) -> None:
    model, draft = make_model(target), make_model("feedback", seed=5)
    alone = model.generate(prompts(1), max_new_tokens=60, do_sample=False)
    drafted = model.generate(prompts(1), max_new_tokens=60, do_sample=False, assistant_model=draft)
    assert torch.equal(alone, drafted)


@pytest.mark.parametrize("drafter", CROPPABLE)
def test_any_core_can_draft_and_a_good_draft_is_accepted(drafter: str) -> None:
    model = make_model(drafter)
    calls = []
    model.register_forward_hook(lambda module, args, kwargs, output: calls.append(1), with_kwargs=True)
    alone = model.generate(prompts(1), max_new_tokens=40, do_sample=False)
    steps = len(calls)
    copied = make_model(drafter)
    copied.generation_config.assistant_confidence_threshold = 0.0
    drafted = model.generate(prompts(1), max_new_tokens=40, do_sample=False, assistant_model=copied)
    assert torch.equal(alone, drafted)
    assert len(calls) - steps < steps / 3  # the draft is always right, so few calls verify many tokens


def test_a_draft_preserves_the_distribution_of_the_target() -> None:
    """The second token after a prompt, over many samples."""
    model, draft = make_model(), make_model(seed=5)
    with torch.no_grad():
        scale = 4.0
        for each in (model, draft):
            each.model.head.vectors *= scale / each.model.head.weight.norm() * V**0.5
        first = model(prompts(1)).logits[0, -1].softmax(-1)
        both = torch.cat([prompts(1).expand(V, -1), torch.arange(V)[:, None]], 1)
        expected = 400 * first @ model(both).logits[:, -1].softmax(-1)
    torch.manual_seed(0)
    counts = torch.zeros(V)
    for _ in range(400):
        generated = model.generate(prompts(1), max_new_tokens=2, do_sample=True, top_k=0, assistant_model=draft)
        counts[generated[0, -1]] += 1
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < 35  # ten degrees of freedom: p = 1e-4


@pytest.mark.parametrize("name", ["lstm", "deltanet"])
def test_a_core_without_crop_raises(name: str) -> None:
    with pytest.raises(ValueError, match="does not support crop"):
        make_model(name).generate(prompts(1), max_new_tokens=9, assistant_model=make_model())


@cores
def test_auto_classes_save_and_load(name: str, tmp_path: Path) -> None:
    model = make_model(name)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is StairwellForCausalLM
    assert loaded.config.core_config() == model.config.core_config()
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    torch.testing.assert_close(loaded(prompts()).logits, model(prompts()).logits)


def test_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    model = make_model(adaptive_span=True, span_ramp=2)
    examples = [{"input_ids": ids, "labels": ids} for ids in (torch.arange(12) % 3 + torch.zeros(8, 1).long())]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=30, per_device_train_batch_size=4, learning_rate=1e-2, report_to=[], use_cpu=True,
        save_strategy="no", logging_steps=10, disable_tqdm=True, seed=1,
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=examples)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0] / 2
    expected = torch.nn.functional.cross_entropy(
        model.eval()(examples[0]["input_ids"][None]).logits[0, :-1], examples[0]["labels"][1:]
    )
    loss = model(examples[0]["input_ids"][None], labels=examples[0]["labels"][None]).loss
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("parts", [1, 4])
def test_trainer_adds_the_span_loss_once_per_step(parts: int, tmp_path: Path) -> None:
    """Gradient accumulation does not change the loss."""
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = make_model(adaptive_span=True, span_ramp=2, span_loss=0.5)
    examples = [{"input_ids": ids, "labels": ids} for ids in prompts(8, 12)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=1, per_device_train_batch_size=8 // parts, gradient_accumulation_steps=parts,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, logging_steps=1, max_grad_norm=0,
    )  # fmt: skip
    ids = torch.stack([example["input_ids"] for example in examples])
    with torch.no_grad():
        expected = model(ids, labels=ids).loss + model.model.core.span_loss()
    assert model.model.core.span_loss() > 0.1
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=examples)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(float(expected), rel=1e-3)


def test_trainer_label_smoothing_shifts_the_labels(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    model, ids = make_model(), prompts(2, 12)
    arguments = transformers.TrainingArguments(str(tmp_path), label_smoothing_factor=0.2, report_to=[], use_cpu=True)
    trainer = transformers.Trainer(model=model, args=arguments)
    loss = trainer.compute_loss(model, {"input_ids": ids, "labels": ids})
    logits = model(ids).logits[:, :-1].flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), label_smoothing=0.2)
    torch.testing.assert_close(loss, expected)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    sizes = {"core.width": "8", "core.layers": "1", "train.steps": "2", "train.batch": "2", "train.segment": "8"}
    options = {**sizes, "task.path": str(folder / "text.txt"), "task.unit": "characters"}
    fit(preset("lm/feedback").with_options(options), folder / "run", "cpu")
    return folder / "run"


def test_from_run_and_to_run_are_inverse(run: Path, tmp_path: Path) -> None:
    from_run(run).save_pretrained(tmp_path / "hf")
    again = to_run(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf"), tmp_path / "again")
    for name in ("config.json", "task.json", "model.safetensors"):
        assert (again / name).read_bytes() == (run / name).read_bytes()
    model, task = load(again, "cpu")
    assert task.vocabularies["text"] == load(run, "cpu")[1].vocabularies["text"]
    with pytest.raises(UserError, match="is a run already"):
        to_run(from_run(run), again)
    with pytest.raises(UserError, match="did not come from a run folder"):
        to_run(make_model(), tmp_path / "new")


def test_the_code_of_the_model_card_loads_the_model(run: Path, tmp_path: Path) -> None:
    export_hf(run, tmp_path / "hf")
    card = ModelCard.load(tmp_path / "hf" / "README.md")
    assert card.data.library_name == "stairwell" and card.data.pipeline_tag == "text-generation"
    assert card.data.tags == ["stairwell", "feedback"] and card.data.license is None, "users choose the license"
    assert 'pip install ".[hf]"' in card.text and "'stairwell[" not in card.text
    assert f"{from_run(run).num_parameters():,} parameters" in card.text
    code = card.text.split("```py\n")[1].split("```")[0].replace("path/to/this/folder", str(tmp_path / "hf"))
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["tokenizer"].decode(names["tokenizer"]("abc")["input_ids"]) == "abc"
    assert isinstance(names["model"], StairwellForCausalLM)


def test_a_run_that_predicts_labels_is_not_converted(tmp_path: Path) -> None:
    sizes = {"core.width": "8", "core.layers": "1", "train.steps": "1", "train.batch": "2", "task.length": "4"}
    fit(preset("parity/feedback").with_options({**sizes, "task.test_episodes": "1"}), tmp_path / "run", "cpu")
    assert load(tmp_path / "run", "cpu")[0].config.inputs == 2  # and as many outputs
    with pytest.raises(UserError, match="does not predict its next input token"):
        export_hf(tmp_path / "run", tmp_path / "hf")


def test_a_pipeline_generates_text(run: Path) -> None:
    model = from_run(run)
    vocabulary = vocabulary_of(model)
    assert vocabulary is not None
    pipeline = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer(vocabulary))
    text = pipeline("the quick", max_new_tokens=12, do_sample=False)[0]["generated_text"]
    ids = torch.from_numpy(vocabulary.encode("the quick"))[None]
    expected = model.generate(ids, max_new_tokens=12, do_sample=False)[0]
    assert text == vocabulary.decode(expected.numpy()) and len(text) == 21


TEXT = "naïve ß\n\n  12 🙂 done\t."


@pytest.mark.parametrize("vocabulary", [Bytes(), Characters.build([TEXT]), BPE.build([TEXT] * 9, 270)], ids=str)
def test_tokenizers_agree_with_vocabularies(vocabulary: Any, tmp_path: Path) -> None:
    tokenizer(vocabulary).save_pretrained(tmp_path)
    for each in (tokenizer(vocabulary), transformers.AutoTokenizer.from_pretrained(tmp_path)):
        ids = each(TEXT)["input_ids"]
        assert ids == vocabulary.encode(TEXT).tolist()
        assert each.decode(ids) == TEXT
    with pytest.raises(UserError, match="words has no tokenizer"):
        tokenizer(Words.build(["a"]))


def test_invalid_arguments_raise() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="must be a StateCache"):
        model(prompts(), past_key_values=transformers.DynamicCache())
    for wrong in (torch.ones(2, 3), torch.ones(2, 9), torch.ones(1, 7), torch.ones(2, 1, 7, 7)):
        with pytest.raises(ValueError, match="attention_mask must be"):
            model(prompts(), attention_mask=wrong)
    with pytest.raises(ValueError, match="1 for tokens and 0 for padding"):
        model(prompts(), attention_mask=torch.zeros(2, 7).masked_fill(torch.eye(2, 7) > 0, -torch.inf))
    with pytest.raises(ValueError, match="position_ids must be"):
        model(prompts(), position_ids=torch.arange(5)[None])
    with pytest.raises(ValueError, match="a StateCache only"):
        model.generate(prompts(), cache_implementation="static")
    with pytest.raises(UserError, match="labels"):
        StairwellConfig.of(LanguageModelConfig(inputs=4, outputs=3))
