"""The page as a file: what is in it, what is refused, and that its rules are the tasks' own."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stairwell import text
from stairwell.cores import config_type
from stairwell.errors import UserError
from stairwell.export import PageModel, export_html, from_runs
from stairwell.export import html as page
from stairwell.export.pack import pack
from stairwell.export.task_json import describe
from stairwell.models import LanguageModel, LanguageModelConfig
from stairwell.runs.launch import fit
from stairwell.runs.presets import preset
from stairwell.tasks import task_type
from tests.invariants import scramble


def make_task(name: str, **options: Any) -> Any:
    config, kind = task_type(name)
    return kind(config(**options))


def make_model(inputs: int, outputs: int, core: str = "feedback", **options: Any) -> LanguageModel:
    sizes: dict[str, Any] = {"width": 16, "layers": 2}
    if core != "lstm":
        sizes |= {"heads": 2}
    if "memory" in config_type(core).__dataclass_fields__:
        sizes |= {"memory": 6}
    torch.manual_seed(0)
    config = LanguageModelConfig(core=config_type(core)(**sizes), inputs=inputs, outputs=outputs, **options)
    return scramble(LanguageModel(config)).eval()  # type: ignore[return-value]


def shown(task: Any, name: str = "Feedback", core: str = "feedback") -> PageModel:
    return PageModel(name, make_model(task.inputs, task.outputs, core), task)


def shown_text(vocabulary: text.Vocabulary, name: str = "Feedback", core: str = "feedback") -> PageModel:
    return PageModel(name, make_model(vocabulary.size, vocabulary.size, core), vocabulary)


def test_the_file_needs_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    task = make_task("random-walk")
    size = export_html([shown(task), shown(task, "Transformer-XL", "transformer-xl")], path)
    written = path.read_text(encoding="utf-8")
    assert size == path.stat().st_size
    assert list(tmp_path.iterdir()) == [path]
    assert "default-src 'none'" in written
    assert not re.search(r"""(src|href)\s*=|\bimport\s*\(|\bfetch\s*\(|XMLHttpRequest|https?://""", written)
    assert "$" not in re.sub(r"<script.*?</script>", "", written, flags=re.DOTALL)


def test_parameters_are_in_the_page_bit_for_bit() -> None:
    model = make_model(4, 5)
    packed = pack(model)
    block = np.frombuffer(base64.b64decode(packed.block), "<f4")
    for name, tensor in model.state_dict().items():
        place = packed.header["tensors"][name]
        found = block[place["offset"] : place["offset"] + place["size"]]
        assert np.array_equal(found, tensor.flatten().numpy()), name


def test_names_from_outside_cannot_change_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    written = page.make_page([PageModel(evil, make_model(3, 3), text.Characters("<&>"))])
    assert "alert(1)</script>" not in written


@pytest.mark.parametrize(
    ("options", "core", "words"),
    [
        ({"adaptive": (2,)}, {}, "adaptive embeddings and softmax"),
    ],
)
def test_what_the_engine_cannot_run_is_refused_in_one_line(
    options: dict[str, Any], core: dict[str, Any], words: str, tmp_path: Path
) -> None:
    config = LanguageModelConfig(core=config_type("feedback")(width=4, heads=1, **core), inputs=5, **options)
    with pytest.raises(UserError, match=words) as refused:
        export_html([PageModel("Feedback", LanguageModel(config), text.Characters("abcde"))], tmp_path / "page.html")
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_core_that_the_engine_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stairwell.export.pack.RUNS", ("lstm",))
    with pytest.raises(UserError, match="cannot run the core feedback; it can run lstm"):
        pack(make_model(3, 3))


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "LARGEST", 60_000)
    with pytest.raises(UserError, match="the page would have"):
        export_html([shown(make_task("parity"))], tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_models_of_different_tasks_do_not_share_a_page() -> None:
    with pytest.raises(UserError, match="'LSTM' was trained for something else than 'Feedback'"):
        page.make_page([shown(make_task("parity")), shown(make_task("random-walk"), "LSTM", "lstm")])
    with pytest.raises(UserError, match="at least one model"):
        page.make_page([])


def test_models_of_one_name_are_numbered() -> None:
    task = make_task("parity")
    assert [one.name for one in page.numbered([shown(task), shown(task, "LSTM"), shown(task)])] == [
        "Feedback 1",
        "LSTM",
        "Feedback 2",
    ]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("random-walk", {"grid": 5, "reset": True}),
        ("parity", {}),
        ("s5", {}),
        ("s5", {"generators": True, "elements": 4}),
    ],
)
def test_a_machine_gives_the_labels_of_its_task(name: str, options: dict[str, Any]) -> None:
    task = make_task(name, length=60, **options)
    machine = describe(task)["machine"]
    batch = next(iter(task.batches("valid", 4, 150)))
    assert batch.start is not None
    for tokens, targets, starts in zip(batch.tokens, batch.targets, batch.start):
        state = 0
        for token, target, start in zip(tokens.tolist(), targets.tolist(), starts.tolist()):
            state = machine["next"][0 if start else state][token]
            assert machine["label"][state] == target


@pytest.mark.parametrize("name", ["algorithmic", "copy", "reverse", "counting", "s5"])
def test_other_tasks_come_with_a_sample_of_their_test_split(name: str) -> None:
    task = make_task(name, **({"elements": 6} if name == "s5" else {}))
    subject = describe(task)
    assert len(subject["symbols"]) == task.inputs and len(subject["labels"]) == task.outputs
    sample = subject["sample"]
    batch = next(iter(task.batches("test", 1, len(sample["tokens"]))))
    assert sample["tokens"] == batch.tokens[0].tolist()
    assert [-100 if label is None else label for label in sample["labels"]] == batch.targets[0].tolist()


def test_labeled_streams_show_their_own_words(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.tokens").write_text("go stop go\n" * 4)
        (tmp_path / f"{split}.labels").write_text("here there -\n" * 4)
    subject = describe(make_task("labeled", path=str(tmp_path)))
    assert subject == {"kind": "symbols", "symbols": ["go", "stop"], "labels": ["here", "there"]}


def test_a_run_becomes_a_page(tmp_path: Path) -> None:
    small = {"core.width": "8", "train.steps": "1", "train.curriculum": "", "task.valid_episodes": "4"}
    experiment = preset("parity/lstm").with_options(small)
    fit(experiment, tmp_path / "run", "cpu")
    size = export_html(from_runs([tmp_path / "run"]), tmp_path / "page.html")
    assert size == (tmp_path / "page.html").stat().st_size
    data = re.search(r'id="data">(.*?)</script>', (tmp_path / "page.html").read_text(encoding="utf-8"))
    assert data is not None
    assert [model["name"] for model in json.loads(data[1])["models"]] == ["LSTM"]
