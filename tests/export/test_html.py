"""The exported HTML file: its content, unsupported models, and the JSON of tasks."""

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
from stairwell.export.pack import pack_language_model
from stairwell.export.task_json import task_json
from stairwell.models import LanguageModel, LanguageModelConfig
from stairwell.report.colors import CORE_COLORS
from stairwell.runs.launch import fit
from stairwell.runs.presets import preset
from stairwell.tasks import TASKS, task_type
from stairwell.tasks.generated import GeneratedTask
from tests.invariants import scramble


def make_task(name: str, **options: Any) -> Any:
    config, task = task_type(name)
    return task(config(**options))


def make_model(inputs: int, outputs: int, core: str = "feedback", **options: Any) -> LanguageModel:
    sizes: dict[str, Any] = {"width": 16, "layers": 2}
    if core != "lstm":
        sizes |= {"heads": 2}
    if "memory" in config_type(core).__dataclass_fields__:
        sizes |= {"memory": 6}
    torch.manual_seed(0)
    config = LanguageModelConfig(core=config_type(core)(**sizes), inputs=inputs, outputs=outputs, **options)
    return scramble(LanguageModel(config)).eval()  # type: ignore[return-value]


def task_model(task: Any, name: str = "Feedback", core: str = "feedback") -> PageModel:
    return PageModel(name, make_model(task.inputs, task.outputs, core), task)


def text_model(vocabulary: text.Vocabulary, name: str = "Feedback", core: str = "feedback") -> PageModel:
    return PageModel(name, make_model(vocabulary.size, vocabulary.size, core), vocabulary)


def test_page_is_self_contained(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    task = make_task("random-walk")
    size = export_html([task_model(task), task_model(task, "Transformer-XL", "transformer-xl")], path)
    html = path.read_text(encoding="utf-8")
    assert size == path.stat().st_size
    assert list(tmp_path.iterdir()) == [path]
    assert "default-src 'none'" in html
    assert not re.search(r"""(src|href)\s*=|\bimport\s*\(|\bfetch\s*\(|XMLHttpRequest|https?://""", html)
    assert "{{" not in re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)


def test_packed_parameters_are_exact() -> None:
    model = make_model(4, 5)
    packed = pack_language_model(model)
    block = np.frombuffer(base64.b64decode(packed.block), "<f4")
    for name, tensor in model.state_dict().items():
        entry = packed.header["tensors"][name]
        values = block[entry["offset"] : entry["offset"] + entry["size"]]
        assert np.array_equal(values, tensor.flatten().numpy()), name


def test_names_are_escaped() -> None:
    name = "</script><script>alert(1)</script>"
    html = page.make_page([PageModel(name, make_model(3, 3), text.Characters("<&>"))])
    assert "alert(1)</script>" not in html


def test_adaptive_softmax_is_rejected(tmp_path: Path) -> None:
    config = LanguageModelConfig(core=config_type("feedback")(width=4, heads=1), inputs=5, adaptive=(2,))
    with pytest.raises(UserError, match="adaptive embeddings and softmax") as error:
        export_html([PageModel("Feedback", LanguageModel(config), text.Characters("abcde"))], tmp_path / "page.html")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_unsupported_core_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stairwell.export.pack.step_of", lambda core: None)
    with pytest.raises(UserError, match="does not support the core feedback: it supports attention cores"):
        pack_language_model(make_model(3, 3))


def test_page_that_is_too_large_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_BYTES", 60_000)
    with pytest.raises(UserError, match="the page would have"):
        export_html([task_model(make_task("parity"))], tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_models_of_different_tasks_are_rejected() -> None:
    with pytest.raises(UserError, match="'LSTM' and 'Feedback' were trained for different tasks"):
        page.make_page([task_model(make_task("parity")), task_model(make_task("random-walk"), "LSTM", "lstm")])
    with pytest.raises(UserError, match="at least one model"):
        page.make_page([])


def test_vocabulary_of_another_size_than_the_model_is_rejected(tmp_path: Path) -> None:
    mismatched = PageModel("Feedback", make_model(3, 3), text.Bytes())
    with pytest.raises(UserError, match="'Feedback' has 3 input and 3 output tokens, but its vocabulary has 256"):
        export_html([mismatched], tmp_path / "page.html")
    with pytest.raises(UserError, match="but its task has 4 and 64"):
        page.make_page([PageModel("Feedback", make_model(3, 64), make_task("random-walk"))])
    assert not list(tmp_path.iterdir())


def test_models_have_the_colors_of_reports() -> None:
    task = make_task("parity")
    html = page.make_page([task_model(task, "LSTM", "lstm"), task_model(task)])
    data = re.search(r'id="data">(.*?)</script>', html)
    assert data is not None
    colors = {model["name"]: model["color"] for model in json.loads(data[1])["models"]}
    assert colors == {"LSTM": CORE_COLORS["lstm"], "Feedback": CORE_COLORS["feedback"]}


def test_models_of_one_name_are_numbered() -> None:
    task = make_task("parity")
    assert [
        one.name for one in page.with_unique_names([task_model(task), task_model(task, "LSTM"), task_model(task)])
    ] == [
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
        ("group-words", {"generators": 3, "label": "every"}),
        ("group-words", {"group": "A5xZ2", "generators": 5, "label": "every"}),
        ("group-words", {"group": "(0 1 2 3)(4 5 6 7), (0 4 2 6)(1 7 3 5)", "label": "every"}),
    ],
)
def test_machine_gives_the_labels_of_the_task(name: str, options: dict[str, Any]) -> None:
    task = make_task(name, length=60, **options)
    machine = task_json(task)["machine"]
    batch = next(iter(task.batches("valid", 4, 150)))
    assert batch.start is not None
    for tokens, targets, starts in zip(batch.tokens, batch.targets, batch.start):
        state = 0
        for token, target, start in zip(tokens.tolist(), targets.tolist(), starts.tolist()):
            state = machine["next"][0 if start else state][token]
            assert machine["label"][state] == target


@pytest.mark.parametrize("name", ["algorithmic", "copy", "reverse", "counting", "s5"])
def test_tasks_without_a_machine_have_an_example_of_the_test_split(name: str) -> None:
    task = make_task(name, **({"elements": 6} if name == "s5" else {}))
    described = task_json(task)
    assert len(described["tokens"]) == task.inputs and len(described["labels"]) == task.outputs
    example = described["example"]
    batch = next(iter(task.batches("test", 1, len(example["tokens"]))))
    assert example["tokens"] == batch.tokens[0].tolist()
    assert [-100 if label is None else label for label in example["labels"]] == batch.targets[0].tolist()


def test_labeled_task_has_the_names_of_its_tokens_and_labels(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.tokens").write_text("go stop go\n" * 4)
        (tmp_path / f"{split}.labels").write_text("here there -\n" * 4)
    described = task_json(make_task("labeled", path=str(tmp_path)))
    assert described == {"type": "tokens", "item": "event", "tokens": ["go", "stop"], "labels": ["here", "there"]}


@pytest.mark.parametrize("name", [name for name in TASKS if issubclass(task_type(name)[1], GeneratedTask)])
def test_tokens_and_labels_of_generated_tasks_have_distinct_names(name: str) -> None:
    task = make_task(name)
    described, (tokens, labels) = task_json(task), task.names()
    assert (described["tokens"], described["labels"]) == (tokens, labels)
    assert (len(set(tokens)), len(set(labels))) == (task.inputs, task.outputs)
    assert all(len(name.split()) == 1 for name in (*tokens, *labels))


def test_export_of_a_run(tmp_path: Path) -> None:
    small = {"core.width": "8", "train.steps": "1", "train.curriculum": "", "task.valid_episodes": "4"}
    experiment = preset("parity/lstm").with_options(small)
    fit(experiment, tmp_path / "run", "cpu")
    size = export_html(from_runs([tmp_path / "run"]), tmp_path / "page.html")
    assert size == (tmp_path / "page.html").stat().st_size
    data = re.search(r'id="data">(.*?)</script>', (tmp_path / "page.html").read_text(encoding="utf-8"))
    assert data is not None
    assert [model["name"] for model in json.loads(data[1])["models"]] == ["LSTM"]
