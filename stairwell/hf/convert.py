"""Convert run folders to models of transformers and back, without loss."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from stairwell import text
from stairwell.errors import UserError
from stairwell.files import write_text
from stairwell.hf.card import write_card
from stairwell.hf.causal import StairwellConfig, StairwellForCausalLM
from stairwell.hf.encoder_decoder import StairwellForSeq2SeqLM, StairwellSeq2SeqConfig
from stairwell.hf.tokenizers import pair_tokenizers, tokenizer
from stairwell.models import LanguageModel, Seq2Seq
from stairwell.outputs import FOLDER, check, write_output_folder
from stairwell.runs.launch import check_new
from stairwell.runs.load import config_of, load, open_run
from stairwell.runs.run import Run
from stairwell.tasks import saved_task
from stairwell.tasks.file_task import vocabularies
from stairwell.tasks.pair_task import PairTask
from stairwell.train.translator import SEARCH, load_search

# The files of a run folder besides the parameters. The config is last: a folder that has one is a complete run.
FILES = (saved_task.FILE, SEARCH, "config.json")


def from_run(path: str | os.PathLike[str]) -> StairwellForCausalLM | StairwellForSeq2SeqLM:
    """Return the trained model of a run folder. Its config keeps what `to_run` needs, and the generation config of a
    sequence-to-sequence model is the run's search."""
    run = open_run(path)
    loaded: tuple[Any, Any] = load(path, "cpu")
    model, task = loaded
    _, note = run.load_model()
    # As text: transformers sorts the keys that it writes, and `to_run` restores files byte for byte.
    files = {"note": json.dumps(note)}
    for name in FILES:
        if (run.path / name).exists():
            files[name] = (run.path / name).read_text(encoding="utf-8")
    converted: StairwellForCausalLM | StairwellForSeq2SeqLM
    if isinstance(model, LanguageModel):
        if "text" not in vocabularies(task):
            # Also if there happen to be as many labels as input tokens, which `StairwellConfig.of` cannot notice.
            raise UserError(
                f"{run.path} is a run of {config_of(run).name}, which does not predict its next input token; only runs "
                "of the task 'lm' can be converted to a causal language model"
            )
        converted = StairwellForCausalLM(StairwellConfig.of(model.config, run=files))
    elif isinstance(model, Seq2Seq):
        converted = StairwellForSeq2SeqLM(StairwellSeq2SeqConfig.of(model.config, run=files))
        set_search(converted, run.path, task)
    else:
        raise UserError(
            f"{run.path} is a {type(model).__name__}; only language models and sequence-to-sequence models can be "
            "converted"
        )
    converted.model.load_state_dict(model.state_dict())
    return converted.eval()


def set_search(model: StairwellForSeq2SeqLM, folder: Path, task: PairTask) -> None:
    """Set the defaults of `generate` to the search of a run, except for max_length_ratio, which depends on the
    source."""
    search = load_search(folder, task)
    _, max_length = search.lengths(task.config.max_source_length, task.config.max_target_length)
    model.generation_config.update(
        num_beams=search.beam,
        length_penalty=search.length_penalty,
        no_repeat_ngram_size=search.no_repeat_ngram_size,
        max_length=max_length + 1,  # the start token counts
    )


def export_hf(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str:
    """Export a run as a folder for `from_pretrained` and return the name of the Auto class that loads it.

    It includes a tokenizer if the vocabulary has one; a separate target tokenizer is in the folder `target`. The folder
    must be new or empty: an exported model may have been trained further."""
    check(folder, FOLDER)
    model = from_run(path)
    auto = "AutoModelForSeq2SeqLM" if isinstance(model, StairwellForSeq2SeqLM) else "AutoModelForCausalLM"

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        if isinstance(model, StairwellForSeq2SeqLM):
            task: Any = load(path, "cpu")[1]
            source, target = pair_tokenizers(task)
            source.save_pretrained(folder)
            if target is not source:
                target.save_pretrained(folder / "target")
        else:
            vocabulary = vocabulary_of(model)
            if vocabulary is not None and vocabulary.fast_tokenizer() is not None:
                tokenizer(vocabulary).save_pretrained(folder)
        write_card(model, auto, folder)

    write_output_folder(folder, write)
    return auto


def to_run(model: StairwellForCausalLM | StairwellForSeq2SeqLM, path: str | os.PathLike[str]) -> Path:
    """Write a model that came from a run folder as a new run folder, with its current parameters."""
    files = model.config.run
    if not files:
        raise UserError("this model did not come from a run folder, so it has no run config; use save_pretrained")
    run = Run(path)
    check_new(run)
    *others, config = FILES
    for name in others:
        if name in files:
            write_text(run.path / name, files[name])
    # The saved model includes a hash of the task, so the task is written first.
    run.save_model(model.model.state_dict(), json.loads(files["note"]))
    write_text(run.path / config, files[config])
    return run.path


def vocabulary_of(model: StairwellForCausalLM) -> text.Vocabulary | None:
    """Return the vocabulary of a model that came from a run of the task `lm`, or None."""
    task = json.loads((model.config.run or {}).get(saved_task.FILE, "{}"))
    vocabulary = task.get("vocabularies", {}).get("text")
    return text.from_json(vocabulary, "the model's config") if vocabulary else None
