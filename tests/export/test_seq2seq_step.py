"""The exported encoder and decoder: onnxruntime and torch.export give the logits of PyTorch for every core."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from stairwell.cores import CORES
from stairwell.errors import UserError
from stairwell.export import export_onnx, export_seq2seq_onnx, export_seq2seq_torch
from stairwell.export.seq2seq_step import DecoderStep, EncoderStep
from stairwell.models import LanguageModel, LanguageModelConfig, Seq2Seq, Seq2SeqConfig
from stairwell.tasks.pair_task import PairVocabulary
from stairwell.tasks.translation import Translation, TranslationConfig
from stairwell.text import BPE
from stairwell.train.translator import Search, Translator
from tests.invariants import scramble
from tests.models.test_seq2seq import DECODERS, SIZES

EXAMPLE = Path(__file__).parents[2] / "examples/onnx_translation.py"
V, T = 11, 9
LENGTHS = (6, 1, 4)  # of the sources
ENCODERS: dict[str, dict[str, Any]] = {
    "feedback": {"encoder_positions": "relative", "encoder_distance": 2, "encoder_norm": "post", "tied": "none"},
    "lstm": {"start_embedding": False},
}
TEXT = "it's ½ of 12 cafés – don't run! 'stop' the dog's run\nein hund läuft, it's a dog; the café's 12 cats 100% run\n"


def make_model(name: str, **options: Any) -> Seq2Seq:
    torch.manual_seed(0)
    core = CORES[name].config(**SIZES, **DECODERS[name])
    sizes = {"encoder_layers": 2, "encoder_heads": 2, "sources": V, "targets": V, **ENCODERS.get(name, {}), **options}
    return scramble(Seq2Seq(Seq2SeqConfig(core=core, **sizes), "reference")).eval()  # type: ignore[return-value]


def make_source() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    # Ids behind the mask must have no effect.
    return torch.randint(V, mask.shape, generator=generator).masked_fill(~mask, -1), mask


def make_targets() -> Tensor:
    return torch.randint(V, (len(LENGTHS), T), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def expected(model: Seq2Seq) -> Tensor:
    return model(make_targets(), model.init_state(len(LENGTHS), *make_source()))[0]


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_encoder_and_decoder_give_the_logits_of_pytorch(name: str) -> None:
    model = make_model(name)
    encoder, decoder = EncoderStep(model), DecoderStep(model)
    source, mask = make_source()
    with torch.no_grad():
        projected, states = encoder(source, mask), list(decoder.inputs(len(LENGTHS)).values())
        for t, token in enumerate(make_targets().T):
            logits, *states = decoder(token, mask, *projected, *states)
            torch.testing.assert_close(logits, expected(model)[:, t], rtol=0, atol=1e-5)


@cache
def exported(name: str, folder: Path) -> Path:
    export_seq2seq_onnx(make_model(name), folder / name)
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx")


# Feedback has one set of keys per layer, the cache grows, and the LSTM is followed by its cross-attention.
@pytest.mark.parametrize("name", ["feedback", "global-cached-staircase", "lstm"])
def test_onnxruntime_gives_the_logits_of_pytorch(name: str, folder: Path) -> None:
    model, path = make_model(name), exported(name, folder)
    encoder, decoder = (onnxruntime.InferenceSession(path / f"{part}.onnx") for part in ("encoder", "decoder"))
    step = DecoderStep(model)
    source, mask = (tensor.numpy() for tensor in make_source())
    names = [output.name for output in encoder.get_outputs()]
    assert [given.name for given in encoder.get_inputs()] == ["source", "source_mask"]
    assert [given.name for given in decoder.get_inputs()] == ["token", "source_mask", *names, *step.names]
    assert [output.name for output in decoder.get_outputs()] == ["logits", *(f"{name}N" for name in step.names)]
    assert {given.name: given.shape for given in decoder.get_inputs()}["source_keys.0"] == ["batch", 2, "source", 4]
    for rows, length in ((slice(None), max(LENGTHS)), (slice(1, 2), 1)):  # all sources, and one of a single token
        given = {"source": source[rows, :length], "source_mask": mask[rows, :length]}
        projected = dict(zip(names, encoder.run(None, given)))
        states = {key: tensor.numpy() for key, tensor in step.inputs(len(given["source"])).items()}
        for t, token in enumerate(make_targets()[rows].T):
            inputs = {"token": token.numpy(), **states, "source_mask": given["source_mask"], **projected}
            logits, *after = decoder.run(None, inputs)
            states = dict(zip(step.names, after))
            torch.testing.assert_close(torch.from_numpy(logits), expected(model)[rows, t], rtol=0, atol=1e-5)


def test_torch_export_gives_the_logits_of_pytorch(tmp_path: Path) -> None:
    model = make_model("feedback")
    export_seq2seq_torch(model, tmp_path / "graphs")
    encoder, decoder = (torch.export.load(tmp_path / f"graphs/{part}.pt2").module() for part in ("encoder", "decoder"))
    source, mask = make_source()
    projected, states = encoder(source, mask), list(DecoderStep(model).inputs(len(LENGTHS)).values())
    for t, token in enumerate(make_targets().T):
        logits, *states = decoder(token, mask, *projected, *states)
        torch.testing.assert_close(logits, expected(model)[:, t], rtol=0, atol=1e-5)


def make_task(**options: Any) -> Translation:
    vocabulary = BPE.build([TEXT], 300)
    return Translation(TranslationConfig(max_target_length=20, **options), PairVocabulary(vocabulary, vocabulary))


def test_example_decodes_greedily_with_onnxruntime_alone(tmp_path: Path) -> None:
    task = make_task(lowercase=True)
    model = make_model("transformer-xl", sources=task.inputs, targets=task.outputs)
    search = Search(beam=1, break_loops=False, max_length_ratio=0.5)
    export_seq2seq_onnx(model, tmp_path / "graphs", task, search)
    texts = ["It's a dog's ½ café – 12 ", "", "  don't 100% _run_ 'drive", "x" * 40]
    # Without torch.
    code = "import sys, runpy; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(EXAMPLE), str(tmp_path / "graphs"), *texts]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    translations = [best[0].text for best in Translator(model, task, search).translate(texts)]
    assert result.stdout.split("\n") == [*translations, ""]
    assert translations[0] and not translations[1]
    for part in ("encoder", "decoder"):
        metadata = onnxruntime.InferenceSession(tmp_path / f"graphs/{part}.onnx").get_modelmeta().custom_metadata_map
        assert metadata["core"] == "transformer-xl" and "stairwell" in metadata
        described = json.loads(metadata["task"])
        assert (described["max_target_length"], described["search"]["max_length_ratio"]) == (20, 0.5)


def test_example_encodes_like_the_tokenizer() -> None:
    vocabulary = BPE.build([TEXT], 300)
    pairs = runpy.run_path(str(EXAMPLE))["BytePairs"](vocabulary.token_table())
    generator = np.random.default_rng(0)
    alphabet = list("aeinrst  '12½,–é_日𝒳́")
    for _ in range(300):
        text = make_task().normalize("".join(generator.choice(alphabet, generator.integers(1, 25))))
        ids = vocabulary.encode(text).tolist() if text else []
        assert pairs.encode(text) == ids and pairs.decode(ids) == text


def test_mistakes_are_rejected(folder: Path, tmp_path: Path) -> None:
    core = CORES["lstm"].config(width=8)
    language_model = LanguageModel(LanguageModelConfig(core=core, inputs=5))
    with pytest.raises(UserError, match="only a Seq2Seq has an encoder and a decoder to export, not a LanguageModel"):
        export_seq2seq_onnx(language_model, tmp_path / "graphs")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="only a LanguageModel can be exported as a graph, not a Seq2Seq"):
        export_onnx(make_model("lstm"), tmp_path / "model.onnx")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="'the model' has 11 source and 11 target tokens, but its task has 301"):
        export_seq2seq_onnx(make_model("lstm"), tmp_path / "graphs", make_task())
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty; choose a new folder"):
        export_seq2seq_onnx(make_model("lstm"), tmp_path / "full")
