"""Run folders as models of transformers and back, without loss."""

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
from stairwell.hf.seq2seq import StairwellForSeq2SeqLM, StairwellSeq2SeqConfig
from stairwell.hf.tokenizers import pair_tokenizers, tokenizer
from stairwell.models import LanguageModel, Seq2Seq
from stairwell.outputs import FOLDER, check, write_output_folder
from stairwell.runs.launch import check_new, load
from stairwell.tasks import spec
from stairwell.tasks.pair_task import PairTask
from stairwell.train import Run
from stairwell.train.translator import SEARCH, search_of

# Of a run folder, besides the parameters. The config last: with it the folder is a run, and a run has what it needs.
FILES = (spec.FILE, SEARCH, "config.json")


def from_run(path: str | os.PathLike[str]) -> StairwellForCausalLM | StairwellForSeq2SeqLM:
    """The trained model of a run folder; its config keeps what `to_run` needs. A translator looks for targets as the
    run does."""
    run = Run(path)
    loaded: tuple[Any, Any] = load(path, "cpu")
    model, task = loaded
    _, note = run.load_model()
    # As text: transformers sorts what it writes, and a run folder should come back byte for byte.
    files = {"note": json.dumps(note)}
    for name in FILES:
        if (run.path / name).exists():
            files[name] = (run.path / name).read_text(encoding="utf-8")
    made: StairwellForCausalLM | StairwellForSeq2SeqLM
    if isinstance(model, LanguageModel):
        made = StairwellForCausalLM(StairwellConfig.of(model.config, run=files))
    elif isinstance(model, Seq2Seq):
        made = StairwellForSeq2SeqLM(StairwellSeq2SeqConfig.of(model.config, run=files))
        set_search(made, run.path, task)
    else:
        raise UserError(f"{run.path} is no language model and no translator but a {type(model).__name__}")
    made.model.load_state_dict(model.state_dict())
    return made.eval()


def set_search(made: StairwellForSeq2SeqLM, folder: Path, task: PairTask) -> None:
    """How `generate` looks for a target, where it is not told otherwise. Of the limits on its length the one that
    depends on the source stays behind."""
    search = search_of(folder, task)
    _, longest = search.lengths(task.config.max_source_length, task.config.max_target_length)
    made.generation_config.update(
        num_beams=search.beam,
        length_penalty=search.length_penalty,
        no_repeat_ngram_size=search.block,
        max_length=longest + 1,  # the start is a token too; a target that is still going on then is cut, as in a run
    )


def export_hf(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str:
    """A run folder as a folder for `from_pretrained`, with a tokenizer where there is one for its vocabulary; a target
    with symbols of its own has its tokenizer in the folder `target`. The name of the Auto class that loads it. The
    folder must be new or empty: one that was exported before may have been trained further by others."""
    check(folder, FOLDER)
    model = from_run(path)
    auto = "AutoModelForSeq2SeqLM" if isinstance(model, StairwellForSeq2SeqLM) else "AutoModelForCausalLM"

    def write(place: Path) -> None:
        model.save_pretrained(place)
        if isinstance(model, StairwellForSeq2SeqLM):
            task: Any = load(path, "cpu")[1]
            source, target = pair_tokenizers(task)
            source.save_pretrained(place)
            if target is not source:
                target.save_pretrained(place / "target")
        else:
            vocabulary = vocabulary_of(model)
            if isinstance(vocabulary, text.Bytes | text.BPE | text.Characters):
                tokenizer(vocabulary).save_pretrained(place)
        write_card(model, auto, place)

    write_output_folder(folder, write)
    return auto


def to_run(model: StairwellForCausalLM | StairwellForSeq2SeqLM, path: str | os.PathLike[str]) -> Path:
    """A model that came from a run folder as a run folder again, its parameters as they are now."""
    files = model.config.run
    if not files:
        raise UserError("this model came from no run folder, so nothing is known of its training; see stairwell.load")
    run = Run(path)
    check_new(run)
    run.save_model(model.model.state_dict(), json.loads(files["note"]))
    for name in FILES:
        if name in files:
            write_text(run.path / name, files[name])
    return run.path


def vocabulary_of(model: StairwellForCausalLM) -> text.Vocabulary | None:
    """The vocabulary of a model that came from a run of the task `lm`."""
    task = json.loads((model.config.run or {}).get(spec.FILE, "{}"))
    kept = task.get("vocabularies", {}).get("text")
    return text.from_json(kept, "the model's config") if kept else None
