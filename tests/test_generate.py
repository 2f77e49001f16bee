"""Text is written as it is decoded, and reads the same as if it had been decoded at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell import FeedbackConfig, LanguageModel, LanguageModelConfig
from stairwell.cli.display import Silence
from stairwell.decode import Session, greedy
from stairwell.generate import generate_text, spell, write
from stairwell.runs.trainings import load, new_job, train
from stairwell.text import BPE, Bytes, Characters, Separated, Vocabulary, Words

TEXT = "Hoch über den Wolken, 無限 — naïve 🙂🙃!\nEine zweite Zeile ohne Ende\n" * 3
LETTERS = "t o _ b e\no r _ n o t\n"


VOCABULARIES = [Bytes(), BPE.build([TEXT], 300), BPE.build(["abc"], 256), Characters.build([TEXT]), Words.build([TEXT])]


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=lambda vocabulary: vocabulary.kind)
def test_pieces_add_up_to_the_text(vocabulary: Vocabulary) -> None:
    first, *ids = vocabulary.encode(TEXT).tolist()
    pieces = list(spell(ids, vocabulary, first))
    assert vocabulary.decode([first]) + "".join(pieces) == vocabulary.decode([first, *ids])
    assert "�" not in "".join(pieces[1:])


def test_symbols_that_spaces_separate_add_up_too() -> None:
    vocabulary = Separated.build([LETTERS])
    first, *ids = vocabulary.encode(LETTERS).tolist()
    assert "t" + "".join(spell(ids, vocabulary, first)) == LETTERS


def test_bytes_that_are_no_text_are_replaced_and_nothing_is_lost() -> None:
    ids = [*"é".encode(), 0xFF, *b"a", 0xC3]
    pieces = list(spell(ids, Bytes(), 0))
    assert pieces[:2] == ["", "é"]  # half a character waits for its other half
    assert "".join(pieces) == Bytes().decode(ids)


def small_model(vocabulary: Vocabulary) -> LanguageModel:
    torch.manual_seed(0)
    core = FeedbackConfig(width=8, heads=2, layers=2, memory=6)
    return LanguageModel(LanguageModelConfig(core=core, inputs=vocabulary.size), "reference").eval()


def test_a_seed_fixes_the_text() -> None:
    vocabulary = Characters.build([TEXT])
    model = small_model(vocabulary)

    def text(seed: int | None) -> str:
        return "".join(write(model, vocabulary, "Eine", 40, seed=seed))

    assert len(text(1)) == 40
    assert text(1) == text(1) != text(2)
    assert text(None) != text(None)


@pytest.mark.parametrize(
    ("options", "told"),
    [({"prompt": ""}, "prompt is empty"), ({"prompt": "§"}, "not in the training text"), ({"tokens": 0}, "at least 1")],
    ids=str,
)
def test_a_mistake_is_told_before_the_first_piece(options: dict[str, Any], told: str) -> None:
    vocabulary = Characters.build([TEXT])
    with pytest.raises(ValueError, match=told):
        write(small_model(vocabulary), vocabulary, **{"prompt": "Eine", "tokens": 5, **options})


def trained(folder: Path, name: str, **options: str) -> Path:
    sizes = {"core.width": "8", "core.layers": "1", "train.steps": "2", "train.batch": "2", "train.segment": "8"}
    train(new_job(name, None, folder / "run", {**sizes, **options}), "cpu", "auto", lambda *_: Silence())
    return folder / "run"


def test_a_run_writes_what_its_model_says(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 20, encoding="utf-8")
    run = trained(tmp_path, "lm/feedback", **{"task.path": str(tmp_path / "text.txt")})
    pieces = list(generate_text(run, "Eine", 30, temperature=0))
    model, task = load(run)
    vocabulary = task.vocabularies["text"]
    prompt = torch.from_numpy(vocabulary.encode("Eine"))[None]
    said = greedy(Session(model, model.init_state(1)), prompt, 30)[0]
    assert "".join(pieces) == vocabulary.decode(said.numpy())


def test_a_run_of_another_task_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path, "random-walk/lstm")
    with pytest.raises(ValueError, match="only runs of the task 'lm' write text"):
        generate_text(run, "a", 3)
