"""The page in a browser: keys and pointers drive it, and what it shows is what PyTorch says."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
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
from tests.export.test_html import make_task, shown, shown_text

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed to open the page in")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
    "--virtual-time-budget=20000",
)  # fmt: skip
WATCH = """<script>
const problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("securitypolicyviolation", (event) => problems.push(event.violatedDirective));
const key = (name) => new KeyboardEvent("keydown", { key: name, bubbles: true });
const press = (name, target = document.body) => target.dispatchEvent(key(name));
const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const live = () => document.getElementById("live").textContent;
const type = (words) => { page.prompt.value = words; page.prompt.dispatchEvent(new Event("input")); };
</script>"""


def open_page(path: Path, *flags: str) -> str:
    profile = f"--user-data-dir={path.parent / 'profile'}"
    command = [str(BROWSER), *FLAGS, profile, *flags, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def drive(models: list[PageModel], script: str, folder: Path) -> Any:
    """Open a page of the models, let a script use it, and return what the script returns."""
    path = folder / "page.html"
    export_html(models, path)
    write = f"""<script>(async () => {{
      const result = await (async () => {{ {script} }})().catch((error) => ({{ failed: error.stack }}));
      document.body.replaceChildren();
      html(document.body, "pre", {{ id: "result" }}, JSON.stringify({{ result, problems }}));
    }})();</script></body>"""
    source = path.read_text(encoding="utf-8").replace("<head>", f"<head>{WATCH}").replace("</body>", write)
    path.write_text(source, encoding="utf-8")
    found = re.search(r'<pre id="result">(.*?)</pre>', open_page(path, "--dump-dom"), re.DOTALL)
    assert found is not None
    answer = json.loads(html.unescape(found[1]))
    assert answer["problems"] == []
    assert not (isinstance(answer["result"], dict) and answer["result"].get("failed")), answer["result"]
    return answer["result"]


def beliefs(one: PageModel, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        logits, _ = one.model(torch.tensor([tokens]), one.model.init_state(1))
    return logits[0].softmax(-1)


def test_the_agent_is_driven_by_keys_and_two_models_follow(tmp_path: Path) -> None:
    task = make_task("random-walk")
    models = [shown(task), shown(task, "Transformer-XL", "transformer-xl")]
    actions = [0, 0, 2, 0, 1, 0, 1, 1, 0, 2, 0, 0]
    keys = ["ArrowUp", "ArrowLeft", "ArrowRight"]
    result = drive(
        models,
        f"""
        const steps = [];
        const look = () => steps.push({{
          believed: page.minds.map((mind) => [...mind.believed]), cell: page.agent.says.textContent,
          says: page.minds.map((mind) => mind.says.textContent), spoken: live(),
          arrow: page.agent.arrow.getAttribute("transform"),
        }});
        for (const key of {json.dumps([keys[action] for action in actions])}) {{ press(key); look(); }}
        press("r"); look();
        document.querySelector('[data-symbol="0"]').click(); look();
        return steps;""",
        tmp_path,
    )
    tokens = [RESET, *actions, RESET, 0]
    cells, headings = trajectory(tokens)
    for m, one in enumerate(models):
        wanted = beliefs(one, tokens)[1:]
        found = torch.tensor([step["believed"][m] for step in result])
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
        right = 0
        for t, step in enumerate(result[:-2]):
            answer = int(wanted[t].argmax())
            right += answer == cells[t + 1]
            assert step["says"][m].startswith("✓ right" if answer == cells[t + 1] else "✗ wrong")
            assert f"Right so far: {right} of {t + 1} " in step["says"][m]
            assert f"{one.name}: " in step["spoken"]
    compass = ("east", "north", "west", "south")
    assert [step["cell"] for step in result] == [
        f"In row {cell // 8 + 1}, column {cell % 8 + 1}, facing {compass[heading]}."
        for cell, heading in zip(cells[1:], headings[1:])
    ]
    assert result[-2]["spoken"].startswith("reset") and "Nothing scored yet" in result[-2]["says"][0]


def test_fifty_random_actions_are_played_and_scored(tmp_path: Path) -> None:
    result = drive(
        [shown(make_task("random-walk"))],
        """
        press("p");
        const playing = page.player.textContent;
        await wait(1000);
        press("p");
        const paused = page.minds[0].asked;
        await wait(1000);
        const still = page.minds[0].asked;
        page.player.click();
        await wait(6000);
        const mind = page.minds[0];
        const marks = page.strips[0].picture.childElementCount;
        return { playing, paused, still, asked: mind.asked, says: mind.says.textContent, tally: mind.tally.textContent,
                 right: mind.right, marks, tokens: page.read, button: page.player.textContent, spoken: live() };""",
        tmp_path,
    )
    asked, right = result["asked"], result["right"]
    assert result["playing"].endswith("Pause") and result["button"] == "Play 50 random actions"
    assert 0 < result["paused"] == result["still"] == asked - 50
    one = shown(make_task("random-walk"))
    answers = beliefs(one, result["tokens"]).argmax(-1).tolist()
    cells, _ = trajectory(result["tokens"])
    assert right == sum(answer == cell for answer, cell in zip(answers[1:], cells[1:]))
    assert result["tally"] == f"{100 * right / asked:.0f}%" and f"{right} of {asked}" in result["spoken"]
    assert result["marks"] == asked


def test_symbols_are_pressed_by_number_and_a_sample_is_played(tmp_path: Path) -> None:
    parity = shown(make_task("parity"), "LSTM", "lstm")
    bits = [1, 0, 1, 1, 0, 1]
    result = drive(
        [parity],
        f"""
        const steps = [], [mind] = page.minds;
        for (const bit of {bits}) {{ press(String(bit + 1)); steps.push([[...mind.believed], mind.known]); }}
        page.inside.open = true;
        await wait(50);
        const names = [...mind.belief.box.querySelectorAll("span:nth-child(3n+1)")].map((name) => name.textContent);
        return {{ steps, names, inside: page.boxes[0].textContent }};""",
        tmp_path,
    )
    found = torch.tensor([step[0] for step in result["steps"]])
    torch.testing.assert_close(found, beliefs(parity, bits), rtol=0, atol=1e-5)
    assert [step[1] for step in result["steps"]] == [sum(bits[: i + 1]) % 2 for i in range(len(bits))]
    assert result["names"] == ["even ✓", "odd"]
    assert "attends to nothing" in result["inside"]


def test_a_task_without_a_rule_is_played_from_its_test_split(tmp_path: Path) -> None:
    task = make_task("counting", length=5)
    one = shown(task, "Staircase", "staircase")
    result = drive(
        [one],
        """
        press("p");
        const steps = [];
        for (let i = 0; i < 50; i++) { await wait(90); steps.push([[...page.minds[0].believed], page.minds[0].known]); }
        press("1");
        page.next();
        return { steps, after: page.read, place: page.place };""",
        tmp_path,
    )
    batch, steps = next(iter(task.batches("test", 1, 50))), result["steps"]
    with torch.no_grad():
        logits, _ = one.model(batch.tokens, one.model.init_state(1), batch.start)
    found = torch.tensor([step[0] for step in steps])
    torch.testing.assert_close(found, logits[0].softmax(-1), rtol=0, atol=1e-5)
    assert [-100 if step[1] is None else step[1] for step in steps] == batch.targets[0].tolist()
    # After a symbol of one's own nothing is known of the truth, so a sample begins from its beginning.
    assert result["after"] == batch.tokens[0, :1].tolist() and result["place"] == 1


def test_text_goes_on_as_greedy_decoding_does(tmp_path: Path) -> None:
    vocabulary = text.Characters("\n abcdé")
    one, lstm = shown_text(vocabulary), shown_text(vocabulary, "LSTM", "lstm")
    result = drive(
        [one, lstm],
        """
        page.go.click();
        const empty = live();
        type("bad"); type("bad z");
        const unknown = page.words.textContent;
        type("bad cé");
        page.temperature.value = 0;
        for (let i = 0; i < 40; i++) page.write();
        const written = page.paper.textContent, ids = page.tokens.map((token) => token.id);
        page.tokens[44].element.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
        const weight = ({ element }) => parseFloat(getComputedStyle(element).getPropertyValue("--weight"));
        const looked = page.tokens.map((token) => (token.element.matches(".seen") ? weight(token) : 0));
        const attention = page.tokens[44].attention.map((layer) => layer.weights.map((row) => [...row]));
        page.tokens[20].element.focus();
        press("ArrowRight", page.tokens[20].element);
        const picked = page.picked, spoken = live(), heads = page.side.querySelectorAll(".heads svg").length;
        page.go.click();
        await wait(500);
        press("Escape");
        const more = page.tokens.length;
        await wait(500);
        const still = page.tokens.length;
        const choice = document.querySelector("select");
        choice.value = 1;
        choice.dispatchEvent(new Event("change"));
        for (let i = 0; i < 9; i++) page.write();
        const other = page.tokens.map((token) => token.id), none = page.side.textContent;
        return { empty, unknown, written, ids, looked, attention, picked, spoken, heads, more, still, other, none };""",
        tmp_path,
    )
    assert "Type something" in result["empty"] and "never seen “z”" in result["unknown"]
    prompt = torch.from_numpy(vocabulary.encode("bad cé"))
    wanted = greedy(Session(one.model, one.model.init_state(1)), prompt[None], 40)[0].tolist()
    assert result["ids"] == [*prompt.tolist(), *wanted]
    assert result["written"] == vocabulary.decode(result["ids"])
    with torch.no_grad(), inspect(one.model) as seen:
        one.model(torch.tensor([result["ids"][:45]]), one.model.init_state(1))
    attended = torch.stack([layer[0, :, -1] for layer in seen.attention])  # (layers, H, slots)
    torch.testing.assert_close(torch.tensor(result["attention"]), attended, rtol=0, atol=1e-5)
    shares = attended.mean((0, 1)).tolist()
    assert [44 - i for i, weight in enumerate(result["looked"]) if weight] == list(range(len(shares), 0, -1))
    assert result["looked"][43] == pytest.approx(55 * shares[0] ** 0.5, abs=1)
    assert result["picked"] == 21 and "layer 2 looks most at" in result["spoken"] and result["heads"] == 4
    assert 46 < result["more"] == result["still"]
    wanted = greedy(Session(lstm.model, lstm.model.init_state(1)), prompt[None], 9)[0].tolist()
    assert result["other"] == [*prompt.tolist(), *wanted] and "attends to nothing" in result["none"]


def test_what_was_typed_is_gray_and_what_was_written_is_not(tmp_path: Path) -> None:
    script = """
      type("abc");
      page.temperature.value = 0;
      for (let i = 0; i < 6; i++) page.write();
      page.pick(4);
      const color = ({ element }) => getComputedStyle(element).color;
      const of = (names) => page.tokens.filter((token) => names(token)).map(color);
      const seen = ({ element }) => element.classList.contains("seen");
      const probe = html(document.body, "span", { style: "color: var(--soft)" });
      const ink = html(document.body, "span", { style: "color: var(--ink)" });
      return {
        typed: of((t) => !t.written), seen: of((t) => !t.written && seen(t)), written: of((t) => t.written),
        soft: getComputedStyle(probe).color, ink: getComputedStyle(ink).color,
      };
    """
    result = drive([shown_text(text.Bytes())], script, tmp_path)
    assert len(result["typed"]) == 3 and len(result["written"]) == 6 and result["seen"]
    assert set(result["written"]) == {result["ink"]}
    assert not set(result["typed"]) & set(result["written"])


@pytest.mark.parametrize("kind", ["grid", "text"])
def test_the_page_is_drawn_in_light_and_dark(kind: str, tmp_path: Path) -> None:
    one = shown(make_task("random-walk")) if kind == "grid" else shown_text(text.Bytes())
    export_html([one], tmp_path / "page.html")
    light = {}
    dark = "--blink-settings=preferredColorScheme=0"
    for theme, flags in (("light", []), ("dark", [dark])):
        picture = tmp_path / f"{theme}.png"
        open_page(tmp_path / "page.html", "--window-size=900,1000", f"--screenshot={picture}", *flags)
        pixels = imread(picture)[..., :3]
        assert pixels.shape[:2] == (1000, 900)
        light[theme] = pixels.mean()
        assert pixels.std() > 0.05, "nothing is drawn"
    assert light["light"] > 0.8 and light["dark"] < 0.3
