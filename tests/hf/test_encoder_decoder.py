"""Sequence-to-sequence models in transformers: caching, padding, assisted decoding, Trainer and conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stairwell.configs import field_types
from stairwell.cores import CORES, config_type
from stairwell.errors import UserError
from stairwell.models import IGNORE_INDEX
from stairwell.runs.launch import fit
from stairwell.runs.load import load
from stairwell.runs.presets import preset
from stairwell.train.translator import Search, Translator
from tests import language_pair
from tests.invariants import scramble

transformers = pytest.importorskip("transformers")
from stairwell.hf import (  # noqa: E402
    StairwellForSeq2SeqLM,
    StairwellSeq2SeqConfig,
    StateCache,
    export_hf,
    from_run,
    pair_tokenizers,
    to_run,
)

V, START = 11, 10
SIZES: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2, "memory": 5, "chunk": 3, "passes": 2}
ENCODER = {"encoder_layers": 2, "encoder_heads": 2}
cores = pytest.mark.parametrize("name", sorted(CORES))
CROPPABLE = sorted(set(CORES) - {"lstm", "deltanet"})
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 6, "temperature": 0.9},
    "beam": {"num_beams": 3, "do_sample": False},
    "beam sampling": {"num_beams": 2, "do_sample": True},
    "several": {"do_sample": True, "num_return_sequences": 3},
}


def make_model(name: str = "feedback", seed: int = 0, **options: Any) -> StairwellForSeq2SeqLM:
    fields = field_types(config_type(name))
    sizes = {key: value for key, value in SIZES.items() if key in fields}
    if name == "memory-network":
        sizes["passes"] = 6
    torch.manual_seed(seed)
    config = StairwellSeq2SeqConfig(core=name, core_options=sizes, encoder_options=ENCODER, vocab_size=V, **options)
    model = StairwellForSeq2SeqLM(config)
    scramble(model.model)
    model.generation_config.eos_token_id = None  # generate the maximum length
    return model.eval()


def sources(batch: int = 2, tokens: int = 7) -> Tensor:
    return torch.randint(V, (batch, tokens), generator=torch.Generator().manual_seed(1))


@cores
@pytest.mark.parametrize("mode", MODES)
def test_generation_is_the_same_with_and_without_a_cache(name: str, mode: str) -> None:
    model = make_model(name)
    generated = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        generated.append(model.generate(sources(), max_new_tokens=16, use_cache=use_cache, **MODES[mode]))
    assert torch.equal(*generated)
    assert generated[0].shape[1] == 17 and (generated[0][:, 0] == START).all()


@cores
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_sources_changes_nothing(name: str, side: str) -> None:
    model, pad = make_model(name), 999  # not in the vocabulary
    sequences = [source[:length] for source, length in zip(sources(3, 9), (9, 4, 1))]
    padding = [source.new_full((9 - len(source),), pad) for source in sequences]
    parts = zip(padding, sequences) if side == "left" else zip(sequences, padding)
    padded = torch.stack([torch.cat(pair) for pair in parts])
    mask = (padded != pad).long()
    for options in ({}, {"num_beams": 3}):
        generated = model.generate(padded, attention_mask=mask, max_new_tokens=12, do_sample=False, **options)
        for target, alone in zip(generated, sequences):
            assert torch.equal(target, model.generate(alone[None], max_new_tokens=12, do_sample=False, **options)[0])
    targets = sources(3, 6)
    logits = model(padded, attention_mask=mask, decoder_input_ids=targets).logits
    for i, alone in enumerate(sequences):
        torch.testing.assert_close(logits[i], model(alone[None], decoder_input_ids=targets[i : i + 1]).logits[0])


@cores
def test_left_padding_of_targets_changes_nothing(name: str) -> None:
    model, targets = make_model(name), sources(2, 6)
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    padded = targets.masked_fill(mask == 0, 999)
    logits = model(sources(), decoder_input_ids=padded, decoder_attention_mask=mask).logits
    torch.testing.assert_close(logits[0], model(sources()[:1], decoder_input_ids=targets[:1]).logits[0])
    torch.testing.assert_close(logits[1, 2:], model(sources()[1:], decoder_input_ids=targets[1:, 2:]).logits[0])


@cores
def test_padding_of_targets_anywhere_with_a_cache(name: str) -> None:
    model, targets = make_model(name).double(), sources(3, 8)
    mask = torch.tensor([[1] * 8, [1, 0, 1, 1, 0, 0, 1, 1], [1, 1, 0, 0, 0, 0, 0, 1]])
    with torch.no_grad():
        first = model(sources(3), decoder_input_ids=targets[:, :6], decoder_attention_mask=mask[:, :6])
        rest = model(
            decoder_input_ids=targets[:, 6:], decoder_attention_mask=mask, past_key_values=first.past_key_values
        )
        logits = torch.cat([first.logits, rest.logits], 1)
        for i in range(3):
            real = mask[i].bool()
            alone = model(sources(3)[i : i + 1], decoder_input_ids=targets[i : i + 1, real])
            torch.testing.assert_close(logits[i, real], alone.logits[0])


@cores
def test_a_returned_cache_continues_without_the_source(name: str) -> None:
    model, targets = make_model(name), sources(2, 8)
    with torch.no_grad():
        whole = model(sources(), decoder_input_ids=targets).logits
        first = model(sources(), decoder_input_ids=targets[:, :3])
        cache = first.past_key_values
        assert isinstance(cache, StateCache) and cache.get_seq_length() == 3
        parts = [first.logits]
        parts += [model(decoder_input_ids=targets[:, t : t + 1], past_key_values=cache).logits for t in (3, 4)]
        parts.append(model(decoder_input_ids=targets[:, 5:], past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    assert model(sources(), decoder_input_ids=targets, use_cache=False).past_key_values is None


@pytest.mark.parametrize("target", CROPPABLE)
def test_a_draft_does_not_change_greedy_generation(target: str) -> None:
    model, draft = make_model(target), make_model("feedback", seed=5)
    alone = model.generate(sources(1), max_new_tokens=40, do_sample=False)
    assert torch.equal(alone, model.generate(sources(1), max_new_tokens=40, do_sample=False, assistant_model=draft))


@cores
def test_auto_classes_save_and_load(name: str, tmp_path: Path) -> None:
    model = make_model(name, tied="output", joint=False, source_vocab_size=13)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is StairwellForSeq2SeqLM
    assert loaded.config.model_config() == model.config.model_config()
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    inputs = {"input_ids": sources() + 2, "decoder_input_ids": sources(2, 5)}
    torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits)


def reversal_examples(n: int) -> list[dict[str, list[int]]]:
    """Return sources of tokens 0..7 and their reversals, each with an end token."""
    generator = torch.Generator().manual_seed(2)
    examples = []
    for _ in range(n):
        length = int(torch.randint(1, 5, (), generator=generator))
        tokens = torch.randint(8, (length,), generator=generator).tolist()
        examples.append({"input_ids": [*tokens, START], "labels": [*tokens[::-1], START]})
    return examples


def collate(examples: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    def padded(lists: list[list[int]], fill: int) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(each) for each in lists], True, fill)

    ids = padded([example["input_ids"] for example in examples], 999)
    return {
        "input_ids": ids,
        "attention_mask": (ids != 999).long(),
        "labels": padded([example["labels"] for example in examples], IGNORE_INDEX),
    }


def test_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    sizes = {"width": 32, "heads": 2, "layers": 1, "memory": 8}
    model = StairwellForSeq2SeqLM(
        StairwellSeq2SeqConfig(core_options=sizes, encoder_options={**ENCODER, "encoder_layers": 1}, vocab_size=V)
    )
    arguments = transformers.Seq2SeqTrainingArguments(
        str(tmp_path), max_steps=150, per_device_train_batch_size=32, learning_rate=1e-2, report_to=[], use_cpu=True,
        save_strategy="no", logging_steps=30, disable_tqdm=True, seed=1, predict_with_generate=True,
        remove_unused_columns=False, generation_max_length=8,
    )  # fmt: skip
    examples = reversal_examples(256)
    trainer = transformers.Seq2SeqTrainer(model=model, args=arguments, train_dataset=examples, data_collator=collate)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0] / 2
    predictions = trainer.predict(examples[:2]).predictions
    assert predictions.shape[0] == 2 and (predictions[:, 0] == START).all()
    # The loss is the mean over all labels, whatever the lengths.
    batch = collate(examples[:3])
    logits = model.eval()(**batch).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(model(**batch).loss, expected)
    torch.testing.assert_close(model(**batch, num_items_in_batch=7).loss * 7, expected * (batch["labels"] >= 0).sum())


@pytest.fixture(scope="module", params=[True, False], ids=["joint", "separate"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    data = language_pair.write(folder / "data")
    names = [name.removeprefix("--") for name in language_pair.TINY[::2]]
    options = dict(zip(names, language_pair.TINY[1::2])) | {"task.path": str(data), "train.steps": "60"}
    options |= {"task.decode_examples": "0", "task.max_source_length": "16", "task.lowercase": "true"}
    if not request.param:
        options |= {"task.joint": "false", "model.tied": "output"}
    fit(preset("translation/feedback").with_options(options), folder / "run", "cpu")
    (folder / "run" / "search.json").write_text('{"beam": 4, "length_penalty": 0.8}\n')
    return folder / "run"


def test_from_run_and_to_run_are_inverse(run: Path, tmp_path: Path) -> None:
    from_run(run).save_pretrained(tmp_path / "hf")
    again = to_run(transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf"), tmp_path / "again")
    for name in ("config.json", "task.json", "search.json", "model.safetensors"):
        assert (again / name).read_bytes() == (run / name).read_bytes()
    load(again, "cpu")
    with pytest.raises(UserError, match="did not come from a run folder"):
        to_run(make_model(), tmp_path / "new")


TEXTS = ["ba  ke li", " SU", "ro mo nu pa", "naïve 🙂\tba", "ba ke li mo nu pa ro su ba ke li mo nu pa ro su ba ke li"]


def test_an_exported_model_translates_as_the_run_does(run: Path, tmp_path: Path) -> None:
    assert export_hf(run, tmp_path) == "AutoModelForSeq2SeqLM"
    card = (tmp_path / "README.md").read_text()
    assert "pipeline_tag: translation" in card and ('subfolder="target"' in card) == (tmp_path / "target").exists()
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    own, task = load(run, "cpu")
    source_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    target_tokenizer = (
        source_tokenizer if task.joint else transformers.AutoTokenizer.from_pretrained(tmp_path / "target")
    )
    expected, truncated = task.encode_sources(TEXTS)
    batch = source_tokenizer(TEXTS, truncation=True, padding=True, return_tensors="pt")
    for ids, mask, alone in zip(batch["input_ids"], batch["attention_mask"], expected):
        assert ids[mask.bool()].tolist() == alone.tolist()
    assert truncated == 1
    texts = target_tokenizer.batch_decode(model.generate(**batch, num_beams=1), skip_special_tokens=True)
    greedy = Translator(own, task, Search(beam=1, max_length_ratio=0, break_loops=False))
    assert [" ".join(line.split()) for line in texts] == [best[0].text for best in greedy.translate(TEXTS)]
    config = model.generation_config
    assert (config.num_beams, config.length_penalty, config.max_length) == (4, 0.8, 17)


def test_pair_tokenizers_normalize_and_append_the_end_token(run: Path) -> None:
    task = load(run, "cpu")[1]
    source, target = pair_tokenizers(task)
    assert (source is target) == task.joint
    for tokenizer, end in ((source, task.source_end), (target, task.end)):
        ids = tokenizer("  Ba\n kE ")["input_ids"]
        assert ids[-1] == end and tokenizer.decode(ids, skip_special_tokens=True) == "ba ke"
        assert tokenizer("")["input_ids"] == [end]


def test_invalid_arguments_raise() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="input_ids or encoder_outputs"):
        model(decoder_input_ids=sources())
    with pytest.raises(ValueError, match="decoder_input_ids or labels"):
        model(sources())
    with pytest.raises(ValueError, match="must be a StateCache"):
        model(sources(), decoder_input_ids=sources(), past_key_values=transformers.DynamicCache())
    with pytest.raises(UserError, match="encoder_laiers"):
        StairwellForSeq2SeqLM(StairwellSeq2SeqConfig(encoder_options={"encoder_laiers": 1}))
