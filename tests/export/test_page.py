"""The exported page in a browser: keys and pointer work, and it shows the predictions of PyTorch."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.image import imread
from torch import Tensor

from stairwell import text
from stairwell.decode import Session, greedy
from stairwell.export import PageModel, export_html
from stairwell.models import inspect
from stairwell.tasks.random_walk import RESET, trajectory
from tests.export.test_html import make_task, task_model, text_model

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed to open the page in")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
    "--virtual-time-budget=20000",
)  # fmt: skip
HELPERS = """<script>
const problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("securitypolicyviolation", (event) => problems.push(event.violatedDirective));
const key = (name) => new KeyboardEvent("keydown", { key: name, bubbles: true });
const press = (name, target = document.body) => target.dispatchEvent(key(name));
const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const live = () => document.getElementById("live").textContent;
const type = (text) => { page.prompt.value = text; page.prompt.dispatchEvent(new Event("input")); };
</script>"""


def open_page(path: Path, *flags: str) -> str:
    profile = f"--user-data-dir={path.parent / 'profile'}"
    command = [str(BROWSER), *FLAGS, profile, *flags, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def run_in_page(models: list[PageModel], script: str, folder: Path) -> Any:
    """Open a page of the models and return the result of a script in it."""
    export_html(models, folder / "page.html")
    return run_script(folder / "page.html", script)


def run_script(path: Path, script: str) -> Any:
    """Open an exported page and return the result of a script in it."""
    runner = f"""<script>(async () => {{
      const result = await (async () => {{ {script} }})().catch((error) => ({{ failed: error.stack }}));
      document.body.replaceChildren();
      html(document.body, "pre", {{ id: "result" }}, JSON.stringify({{ result, problems }}));
    }})();</script></body>"""
    source = path.read_text(encoding="utf-8").replace("<head>", f"<head>{HELPERS}").replace("</body>", runner)
    path.write_text(source, encoding="utf-8")
    match = re.search(r'<pre id="result">(.*?)</pre>', open_page(path, "--dump-dom"), re.DOTALL)
    assert match is not None
    output = json.loads(html.unescape(match[1]))
    assert output["problems"] == []
    assert not (isinstance(output["result"], dict) and output["result"].get("failed")), output["result"]
    return output["result"]


def predict(one: PageModel, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        logits, _ = one.model(torch.tensor([tokens]), one.model.init_state(1))
    return logits[0].softmax(-1)


def test_agent_is_driven_by_keys_and_two_models_predict(tmp_path: Path) -> None:
    task = make_task("random-walk")
    models = [task_model(task), task_model(task, "Transformer-XL", "transformer-xl")]
    actions = [0, 0, 2, 0, 1, 0, 1, 1, 0, 2, 0, 0]
    keys = ["ArrowUp", "ArrowLeft", "ArrowRight"]
    result = run_in_page(
        models,
        f"""
        const steps = [];
        const record = () => steps.push({{
          probabilities: page.cards.map((card) => [...card.probabilities]), cell: page.truth.status.textContent,
          status: page.cards.map((card) => card.status.textContent), spoken: live(),
        }});
        for (const key of {json.dumps([keys[action] for action in actions])}) {{ press(key); record(); }}
        press("r"); record();
        document.querySelector('[data-token="0"]').click(); record();
        return steps;""",
        tmp_path,
    )
    tokens = [RESET, *actions, RESET, 0]
    cells, headings = trajectory(tokens)
    for m, one in enumerate(models):
        expected = predict(one, tokens)[1:]
        probabilities = torch.tensor([step["probabilities"][m] for step in result])
        torch.testing.assert_close(probabilities, expected, rtol=0, atol=1e-5)
        correct = 0
        for t, step in enumerate(result[:-2]):
            answer = int(expected[t].argmax())
            correct += answer == cells[t + 1]
            assert step["status"][m].startswith("✓ correct" if answer == cells[t + 1] else "✗ wrong")
            assert f"Correct so far: {correct} of {t + 1} " in step["status"][m]
            assert f"{one.name}: " in step["spoken"]
    compass = ("east", "north", "west", "south")
    assert [step["cell"] for step in result] == [
        f"In row {cell // 8 + 1}, column {cell % 8 + 1}, facing {compass[heading]}."
        for cell, heading in zip(cells[1:], headings[1:])
    ]
    assert result[-2]["spoken"].startswith("reset") and "Nothing scored yet" in result[-2]["status"][0]


def test_fifty_random_actions_are_played_and_scored(tmp_path: Path) -> None:
    result = run_in_page(
        [task_model(make_task("random-walk"))],
        """
        press("p");
        const playing = page.playButton.textContent;
        await wait(1000);
        press("p");
        const paused = page.cards[0].scored;
        await wait(1000);
        const later = page.cards[0].scored;
        page.playButton.click();
        await wait(6000);
        const card = page.cards[0];
        const marks = page.strips[0].image.childElementCount;
        return { playing, paused, later, scored: card.scored, accuracy: card.accuracy.textContent, marks,
                 correct: card.correct, tokens: page.tokens, button: page.playButton.textContent, spoken: live() };""",
        tmp_path,
    )
    scored, correct = result["scored"], result["correct"]
    assert result["playing"].endswith("Pause") and result["button"] == "Play 50 random actions"
    assert 0 < result["paused"] == result["later"] == scored - 50
    one = task_model(make_task("random-walk"))
    answers = predict(one, result["tokens"]).argmax(-1).tolist()
    cells, _ = trajectory(result["tokens"])
    assert correct == sum(answer == cell for answer, cell in zip(answers[1:], cells[1:]))
    assert f"{correct} of {scored} ({result['accuracy']})" in result["spoken"]
    assert abs(float(result["accuracy"].strip("%")) - 100 * correct / scored) <= 0.5
    assert result["marks"] == scored


def test_tokens_are_pressed_by_number_keys(tmp_path: Path) -> None:
    parity = task_model(make_task("parity"), "LSTM", "lstm")
    bits = [1, 0, 1, 1, 0, 1]
    result = run_in_page(
        [parity],
        f"""
        const steps = [], [card] = page.cards;
        for (const bit of {bits}) {{ press(String(bit + 1)); steps.push([[...card.probabilities], card.label]); }}
        page.details.open = true;
        await wait(50);
        const names = [...card.prediction.box.querySelectorAll("span:nth-child(3n+1)")].map((name) => name.textContent);
        return {{ steps, names, attention: page.attentionBoxes[0].textContent }};""",
        tmp_path,
    )
    found = torch.tensor([step[0] for step in result["steps"]])
    torch.testing.assert_close(found, predict(parity, bits), rtol=0, atol=1e-5)
    assert [step[1] for step in result["steps"]] == [sum(bits[: i + 1]) % 2 for i in range(len(bits))]
    assert result["names"] == ["even ✓", "odd"]
    assert "has no attention" in result["attention"]


def labeled_page(folder: Path) -> PageModel:
    for split in ("train", "valid"):
        (folder / f"{split}.tokens").write_text("open_the_second_door_on_the_left shut wait\n", encoding="utf-8")
        (folder / f"{split}.labels").write_text("opened closed closed\n", encoding="utf-8")
    return task_model(make_task("labeled", path=str(folder)))


def test_events_are_pasted_listed_and_undone(tmp_path: Path) -> None:
    one = labeled_page(tmp_path)
    names = one.task.vocabulary.tokens  # type: ignore[union-attr]
    result = run_in_page(
        [one],
        f"""
        const [card] = page.cards, rows = () => [...page.history.rows.children].map((row) => row.textContent);
        const before = [card.prediction.box.textContent, page.undoButton.disabled];
        page.pasted.value = "{names[0]} {names[1]} {names[2]}";
        page.paste();
        const pasted = [rows(), [...card.probabilities]];
        page.undoButton.click();
        const undone = [rows(), [...card.probabilities]];
        page.pasted.value = "{names[0]} unknown";
        page.paste();
        return {{ before, pasted, undone, left: rows().length, text: page.description.textContent }};""",
        tmp_path,
    )
    assert result["before"] == ["", True], "no bars before the first event"
    expected = predict(one, [0, 1, 2])
    for key, tokens in (("pasted", [0, 1, 2]), ("undone", [0, 1])):
        listed, probabilities = result[key]
        assert [any(names[token] in row for row in listed) for token in tokens] == [True] * len(tokens)
        assert len(listed) == len(tokens) and listed[0].startswith(f"{len(tokens)}{names[tokens[-1]]}")
        torch.testing.assert_close(torch.tensor(probabilities), expected[len(tokens) - 1], rtol=0, atol=1e-5)
    assert result["left"] == 2 and result["text"] == "‹unknown› was not in the training data; nothing was read."


def test_percentages_do_not_hide_the_difference_from_zero_and_one(tmp_path: Path) -> None:
    shares = [0, 0.0004, 0.003, 0.094, 0.31, 0.9, 0.996, 0.9994, 0.9996, 1]
    shown = run_in_page([labeled_page(tmp_path)], f"return {shares}.map(percent);", tmp_path)
    assert shown == ["0%", "<0.1%", "0.3%", "9.4%", "31%", "90%", "99.6%", "99.9%", ">99.9%", "100%"]


def test_a_page_of_one_tracker_speaks_of_the_model(tmp_path: Path) -> None:
    one = labeled_page(tmp_path)
    script = """
        const columns = [...page.history.table.querySelectorAll("thead th")].map((name) => name.textContent);
        const details = document.querySelector("details.facts");
        return [document.querySelector(".lead").textContent, document.querySelector(".walk h3").textContent, columns,
                details.open, details.querySelector("summary").textContent, details.textContent.includes("memory")];"""
    lead, title, columns, *details = run_in_page([one], script, tmp_path)
    assert "The model (Feedback) reads one event after the other and predicts the label" in lead
    assert (title, columns) == ("The model (Feedback)", ["", "event", "predicted label"])
    assert details == [False, "Details of the model: sizes and training data", True]
    _, title, columns, *details = run_in_page([one, replace(one, name="Other")], script, tmp_path)
    assert (title, columns) == ("Feedback", ["", "event", "Feedback", "Other"])
    assert details == [False, "Details of the models: sizes and training data", True]


@pytest.mark.parametrize("models", [1, 2])
def test_names_break_only_between_words_on_a_phone(models: int, tmp_path: Path) -> None:
    events, labels = "unlock_with_badge motion-sensor-triggered", "closed/locked/ALARM closed/unlocked/quiet"
    for split in ("train", "valid"):
        (tmp_path / f"{split}.tokens").write_text(events + "\n", encoding="utf-8")
        (tmp_path / f"{split}.labels").write_text(labels + "\n", encoding="utf-8")
    one = task_model(make_task("labeled", path=str(tmp_path)))
    export_html([replace(one, name=f"Feedback {i + 1}") for i in range(models)], tmp_path / "page.html")
    measure = """<script>
    page.press(0);
    page.press(1);
    setTimeout(() => {
      const lines = (node) => {
        const range = new Range();
        range.selectNodeContents(node);
        return range.getClientRects().length;
      };
      const isWord = (node) => node.nodeName === "#text" && !node.data.includes("-");
      const broken = (element) => [...element.childNodes].some((node) => isWord(node) && lines(node) > 1);
      const cells = [...document.querySelectorAll(".prediction span, .history :is(th, td), .keys button")];
      const { scrollWidth, clientWidth } = document.querySelector(".history .scroll");
      const parts = [...document.querySelectorAll(".prediction .bars > *")];
      const tops = parts.map((part) => part.getBoundingClientRect().top);
      parent.postMessage(JSON.stringify({
        broken: cells.filter(broken).map((e) => e.textContent), count: cells.length, cut: scrollWidth - clientWidth,
        below: tops[1] > tops[0] + 10, beside: Math.abs(tops[2] - tops[0]) < 10,
      }), "*");
    }, 300);</script></body>"""
    source = (tmp_path / "page.html").read_text(encoding="utf-8")
    (tmp_path / "page.html").write_text(source.replace("</body>", measure), encoding="utf-8")
    (tmp_path / "phone.html").write_text(PHONE)
    layout = json.loads(html.unescape(re.sub(r"<[^>]+>", "", open_page(tmp_path / "phone.html", "--dump-dom"))))
    assert layout.pop("count") >= 12
    assert layout == {"broken": [], "cut": 0, "below": True, "beside": True}


def test_names_of_events_are_not_broken_on_a_phone(tmp_path: Path) -> None:
    export_html([labeled_page(tmp_path)], tmp_path / "page.html", "Doors of the server room")
    source = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>Doors of the server room</h1>" in source
    measure = """<script>setTimeout(() => {
      const keys = document.querySelector(".keys"), heights = [...keys.children].map((key) => key.offsetHeight);
      const right = Math.max(...[...document.querySelectorAll("main *")].map((e) => e.getBoundingClientRect().right));
      parent.postMessage(JSON.stringify({ heights, right, cut: keys.scrollHeight > keys.clientHeight + 2 }), "*");
    }, 300);</script></body>"""
    (tmp_path / "page.html").write_text(source.replace("</body>", measure), encoding="utf-8")
    (tmp_path / "phone.html").write_text(PHONE)
    layout = json.loads(re.sub(r"<[^>]+>", "", open_page(tmp_path / "phone.html", "--dump-dom")))
    assert len(set(layout["heights"])) == 1 and layout["right"] <= 390 and not layout["cut"]


def test_task_without_a_machine_plays_its_test_split(tmp_path: Path) -> None:
    task = make_task("counting", length=5)
    one = task_model(task, "Staircase", "staircase")
    result = run_in_page(
        [one],
        """
        press("p");
        const steps = [];
        const [card] = page.cards;
        for (let i = 0; i < 50; i++) { await wait(90); steps.push([[...card.probabilities], card.label]); }
        press("1");
        page.playStep();
        return { steps, tokens: page.tokens, position: page.examplePosition };""",
        tmp_path,
    )
    batch, steps = next(iter(task.batches("test", 1, 50))), result["steps"]
    with torch.no_grad():
        logits, _ = one.model(batch.tokens, one.model.init_state(1), batch.start)
    found = torch.tensor([step[0] for step in steps])
    torch.testing.assert_close(found, logits[0].softmax(-1), rtol=0, atol=1e-5)
    assert [-100 if step[1] is None else step[1] for step in steps] == batch.targets[0].tolist()
    # After a token from the user the label is unknown, so the example starts again.
    assert result["tokens"] == batch.tokens[0, :1].tolist() and result["position"] == 1


def test_generated_text_is_that_of_greedy_decoding(tmp_path: Path) -> None:
    vocabulary = text.Characters("\n abcdé")
    one, lstm = text_model(vocabulary), text_model(vocabulary, "LSTM", "lstm")
    result = run_in_page(
        [one, lstm],
        """
        page.playButton.click();
        const empty = live();
        type("bad"); type("bad z");
        const unknown = page.status.textContent;
        type("bad cé");
        page.temperature.value = 0;
        for (let i = 0; i < 40; i++) page.generate();
        const text = page.text.textContent, ids = page.tokens.map((token) => token.id);
        page.tokens[44].element.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
        const weight = ({ element }) => parseFloat(getComputedStyle(element).getPropertyValue("--weight"));
        const shades = page.tokens.map((token) => (token.element.matches(".attended") ? weight(token) : 0));
        const attention = page.tokens[44].attention.map((layer) => layer.weights.map((row) => [...row]));
        page.tokens[20].element.focus();
        press("ArrowRight", page.tokens[20].element);
        const selected = page.selected, spoken = live(), heads = page.side.querySelectorAll(".heads svg").length;
        page.playButton.click();
        await wait(500);
        press("Escape");
        const stopped = page.tokens.length;
        await wait(500);
        const later = page.tokens.length;
        const menu = document.querySelector("select");
        menu.value = 1;
        menu.dispatchEvent(new Event("change"));
        for (let i = 0; i < 9; i++) page.generate();
        const other = page.tokens.map((token) => token.id), side = page.side.textContent;
        return { empty, unknown, text, ids, shades, attention, selected, spoken, heads, stopped, later, other,
                 side };""",
        tmp_path,
    )
    assert result["empty"] == "Type a prompt." and "“z” is not in the vocabulary" in result["unknown"]
    prompt = torch.from_numpy(vocabulary.encode("bad cé"))
    expected = greedy(Session(one.model, one.model.init_state(1)), prompt[None], 40)[0].tolist()
    assert result["ids"] == [*prompt.tolist(), *expected]
    assert result["text"] == vocabulary.decode(result["ids"])
    with torch.no_grad(), inspect(one.model) as recorder:
        one.model(torch.tensor([result["ids"][:45]]), one.model.init_state(1))
    attended = torch.stack([layer[0, :, -1] for layer in recorder.attention])  # (layers, H, distances)
    torch.testing.assert_close(torch.tensor(result["attention"]), attended, rtol=0, atol=1e-5)
    means = attended.mean((0, 1)).tolist()
    assert [44 - i for i, weight in enumerate(result["shades"]) if weight] == list(range(len(means), 0, -1))
    assert result["shades"][43] == pytest.approx(55 * means[0] ** 0.5, abs=1)
    assert result["selected"] == 21 and "layer 2 attends most to" in result["spoken"] and result["heads"] == 4
    assert 46 < result["stopped"] == result["later"]
    expected = greedy(Session(lstm.model, lstm.model.init_state(1)), prompt[None], 9)[0].tolist()
    assert result["other"] == [*prompt.tolist(), *expected] and "has no attention" in result["side"]


def test_prompt_is_gray_and_generated_text_is_not(tmp_path: Path) -> None:
    script = """
      type("abc");
      page.temperature.value = 0;
      for (let i = 0; i < 6; i++) page.generate();
      page.select(4);
      const color = ({ element }) => getComputedStyle(element).color;
      const colors = (condition) => page.tokens.filter(condition).map(color);
      const attended = ({ element }) => element.classList.contains("attended");
      const ink = html(document.body, "span", { style: "color: var(--ink)" });
      return {
        prompt: colors((t) => !t.generated), attended: colors((t) => !t.generated && attended(t)),
        generated: colors((t) => t.generated), ink: getComputedStyle(ink).color,
      };
    """
    result = run_in_page([text_model(text.Bytes())], script, tmp_path)
    assert len(result["prompt"]) == 3 and len(result["generated"]) == 6 and result["attended"]
    assert set(result["generated"]) == {result["ink"]}
    assert not set(result["prompt"]) & set(result["generated"])


PHONE = """<body><iframe src="page.html" style="width: 390px; height: 900px"></iframe><script>
addEventListener("message", ({ data }) => { document.body.textContent = data; });
</script></body>"""
MEASURE_LAYOUT = """<script>
for (const name of ["quite incomprehensibilities", "quite"]) {
  page.prompt.value = name;
  page.prompt.dispatchEvent(new Event("input"));
}
setTimeout(() => {
  const width = (element) => element.getBoundingClientRect().width;
  const bars = [...document.querySelectorAll(".bars .track")].map(width);
  const panel = document.querySelector(".side"), cut = panel.scrollHeight > panel.clientHeight + 2;
  const right = Math.max(...[...document.querySelectorAll("main *")].map((e) => e.getBoundingClientRect().right));
  parent.postMessage(JSON.stringify({ width: innerWidth, right, bars, cut }), "*");
}, 500);
</script></body>"""


def measure_on_phone(path: Path, script: str) -> Any:
    """Open a page in a frame of 390 pixels and return what a script in it sends to its parent."""
    source = path.read_text(encoding="utf-8")
    path.write_text(source.replace("</body>", script), encoding="utf-8")
    phone = path.with_name("phone.html")
    phone.write_text(PHONE)
    return json.loads(re.sub(r"<[^>]+>", "", open_page(phone, "--dump-dom")))


def test_text_page_fits_a_phone(tmp_path: Path) -> None:
    vocabulary = text.Words.build(["quite antidisestablishmentarianism incomprehensibilities\n"])
    export_html([text_model(vocabulary, "Cached Staircase", "cached-staircase")], tmp_path / "page.html")
    layout = measure_on_phone(tmp_path / "page.html", MEASURE_LAYOUT)
    assert layout["width"] == 390 and layout["right"] <= 390 and not layout["cut"]
    assert layout["bars"] and min(layout["bars"]) > 100


@pytest.mark.parametrize("page_type", ["grid", "text"])
def test_page_has_a_light_and_a_dark_theme(page_type: str, tmp_path: Path) -> None:
    one = task_model(make_task("random-walk")) if page_type == "grid" else text_model(text.Bytes())
    export_html([one], tmp_path / "page.html")
    brightness = {}
    dark = "--blink-settings=preferredColorScheme=0"
    for theme, flags in (("light", []), ("dark", [dark])):
        screenshot = tmp_path / f"{theme}.png"
        open_page(tmp_path / "page.html", "--window-size=900,1000", f"--screenshot={screenshot}", *flags)
        pixels = imread(screenshot)[..., :3]
        assert pixels.shape[:2] == (1000, 900)
        brightness[theme] = pixels.mean()
        assert pixels.std() > 0.05
    assert brightness["light"] > 0.8 and brightness["dark"] < 0.3
