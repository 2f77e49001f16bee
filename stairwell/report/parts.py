"""The sections of the page that stand still, as HTML. Every word that comes from outside goes through `escape`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from stairwell.provenance import provenance as made_by
from stairwell.report.collect import Attention, RunReport, finite
from stairwell.report.compare import Model, count_text, metric_text, number_text, one_run_each, score_text, time_text
from stairwell.report.table import Cell, Table


def color(model: Model) -> str:
    return f'style="--c: var(--c{model.color})"'


def section(title: str, note: str, boxes: list[str], kind: str = "inside") -> str:
    """A section of boxes under a note; nothing where there are none."""
    if not boxes:
        return ""
    return f'<section><h2>{title}</h2><p class="note">{note}</p><div class="{kind}">{"".join(boxes)}</div></section>'


def cards(found: list[Model]) -> str:
    """One large number a model."""
    items = []
    for model in found:
        run = model.runs[0]
        value = escape(score_text(model.score, run.metric))
        if model.deviation is not None:
            value += f" <small>± {escape(score_text(model.deviation, run.metric))}</small>"
        facts = [f"{run.weights:,} weights"] if run.weights is not None else []
        facts += [f"{count_text(run.tokens)} {run.unit}", time_text(run.seconds)]
        if len(model.runs) > 1:
            facts.append(f"{len(model.runs)} seeds")
        about = " · ".join(fact.replace(" ", "&nbsp;") for fact in facts)
        items.append(
            f'<li class="card" {color(model)}><div class="model">{escape(model.name)}</div>'
            f'<div class="value">{value}</div>'
            f'<div class="what">{escape(metric_text(run.metric))}, {model.scored_on}<br>{about}</div></li>'
        )
    return f'<ul class="scores">{"".join(items)}</ul>' if items else ""


def tables(given: list[Table], notes: list[str], found: list[Model]) -> str:
    written = "".join(table(one, swatches(found)) for one in given)
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    if not written and not listed:
        return ""
    words = f'<ul class="notes">{listed}</ul>' if listed else ""
    return f'<section><h2>Results</h2>{words}<div class="tables">{written}</div></section>'


def swatches(found: list[Model]) -> dict[str, str]:
    """A square of its color for every model."""
    return {model.name: f'<span class="swatch" {color(model)}></span>' for model in found}


def table(given: Table, swatches: dict[str, str]) -> str:
    width = range(len(given.columns))
    numeric = [all(looks_numeric(row[i]) for row in given.rows if i < len(row)) and bool(given.rows) for i in width]

    def cell(i: int, value: Cell) -> str:
        text = swatches.get(str(value), "") + escape(number_text(value))
        if i == 0:
            return f'<th scope="row">{text}</th>'
        return f'<td class="number">{text}</td>' if i in width and numeric[i] else f"<td>{text}</td>"

    head = "".join(
        f'<th scope="col"{" class=number" if i and numeric[i] else ""}>{swatches.get(name, "")}{escape(name)}</th>'
        for i, name in enumerate(given.columns)
    )
    body = "".join(f"<tr>{''.join(cell(i, value) for i, value in enumerate(row))}</tr>" for row in given.rows)
    caption = f'<p class="caption">{escape(given.caption)}</p>' if given.caption else ""
    return (
        f'<div class="card"><h3>{escape(given.title)}</h3><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{caption}</div>"
    )


def looks_numeric(value: Cell) -> bool:
    """Whether a cell belongs to a column of figures: a number, a text that begins with one, or nothing."""
    return not isinstance(value, str) or value.lstrip("<>≤≥~≈+-−")[:1].isdigit() or value in ("", "–", "-")


def walks(found: list[dict[str, Any]], seeds: bool) -> str:
    if not found:
        return ""
    boxes = "".join(f'<div data-walk="{i}"></div>' for i in range(len(found)))
    many = any(len(walk["episodes"]) > 1 for walk in found)
    shown = "Fresh episodes" if many else "A fresh episode"
    return (
        "<section><h2>Where the models believe the agent to be</h2>"
        f"<p>{shown} of the test split, in its order, not picked. The models read nothing but the actions; after each "
        f"one they say how likely the agent is in each cell.{' Of each model one seed is shown.' if seeds else ''}</p>"
        f"{boxes}</section>"
    )


def learning(found: list[Model]) -> str:
    runs = [run for model in found for run in model.runs]
    if not any(run.curves.tokens or run.validations for run in runs):
        return ""
    names = sorted({run.curves.stage_name for run in runs if run.curves.stage_name})
    reached = ", on what the curriculum has reached by then" if names else ""
    lines = f"Strong lines with circles: validation, on the whole task. Thin lines: training{reached}."
    if not any(len(run.validations) > 1 for run in runs):
        lines = f"Lines: training{reached}. Circles: validation, on the whole task."
    stages = ""
    if names:
        what = "stage" if names == ["stage"] else f"{' or '.join(map(metric_text, names))} of the training episodes"
        stages = f'<div class="card chart" id="stages"><h3>Curriculum: {escape(what)}, against tokens</h3></div>'
    return (
        '<section><div class="head"><h2>How they learned</h2>'
        '<div class="choices" id="metrics" role="group" aria-label="what is drawn"></div></div>'
        f'<p class="note">{lines} Point at a chart for its numbers.</p>'
        '<ul class="legend" id="legend"></ul>'
        '<div class="charts"><div class="card chart" id="against-tokens"><h3></h3></div>'
        f'<div class="card chart" id="against-seconds"><h3></h3></div>{stages}</div></section>'
    )


def shown(model: Model, run: RunReport) -> str:
    name = f"{model.name}, seed {run.seed}" if len(model.runs) > 1 else model.name
    return f'<h3><span class="swatch"></span>{escape(name)}</h3>'


def learned(found: list[Model]) -> str:
    """What the memory is made of, where a model learns that."""
    boxes = [
        f'<div class="card" {color(model)}>{shown(model, run)}{"".join(memory_bars(run))}</div>'
        for model, run, _ in one_run_each(found, lambda run: run.layer_weights)
    ]
    note = "Feedback remembers a mix of its layers, from the embedding to the top, and learns how much of each."
    return section("What the memory is made of", note, boxes)


def memory_bars(run: RunReport) -> Iterator[str]:
    for number, weights in enumerate(run.layer_weights):
        if len(run.layer_weights) > 1:
            yield f'<p class="note">the memory that layer {number + 1} reads</p>'
        names = ["embedding", *(f"layer {l + 1}" for l in range(len(weights) - 1))]
        yield bars([(name, weight, f"{100 * weight:.1f}%") for name, weight in zip(names, weights)])


def span_bars(run: RunReport) -> str:
    memory = run.config.get("core", {}).get("memory", 1)
    longest = max([memory, *(z for heads in run.spans for z in heads)])
    rows = [
        (f"layer {l + 1}, head {h + 1}", z / longest, f"{z:.0f}")
        for l, heads in enumerate(run.spans)
        for h, z in enumerate(heads)
    ]
    return f'<p class="caption">learned spans, in {run.unit}</p>{bars(rows)}'


def bars(rows: list[tuple[str, float, str]]) -> str:
    """Horizontal bars: what, how long (0..1), in words."""
    cells = "".join(
        f'<span>{escape(name)}</span><div class="track"><div class="fill" style="width: {100 * part:.1f}%"></div></div>'
        f'<span class="percent">{escape(words)}</span>'
        for name, part, words in rows
    )
    return f'<div class="bars">{cells}</div>'


def with_attention(found: list[Model]) -> list[tuple[str, Model, RunReport, Attention]]:
    """One run of each model that attends, with the model's number on the page."""
    numbers = {model.name: str(i) for i, model in enumerate(found)}
    attend = one_run_each(found, lambda run: run.attention)
    return [(numbers[model.name], model, run, attention) for model, run, attention in attend]


def attention(found: list[Model]) -> str:
    boxes = []
    for number, model, run, seen in with_attention(found):
        spans = span_bars(run) if run.spans else ""
        picture = heads(number, seen, run.unit)
        boxes.append(f'<div class="card" {color(model)}>{shown(model, run)}{picture}{spans}</div>')
    note = (
        "The share of attention that each head gives to each distance, averaged over a short stream of "
        "test data. Every row has its own scale, and heights grow with the square root, so that small shares stay "
        "visible; the tallest column's share is written beside it."
    )
    return section("How far back they look", note, boxes)


def heads(run: str, attention: Attention, unit: str) -> str:
    """A row of columns for every head, the nearest distance on the left."""
    rows = []
    for l, (layer, weights) in enumerate(zip(attention.layers, attention.weights)):
        rows.append(f'<span class="layer">{escape(layer)}</span>')
        for h, head in enumerate(weights):
            peak = max(head)
            where = attention.first + head.index(peak) * attention.bin
            words = f"{layer}, head {h + 1}: most of it, {100 * peak:.1f}%, at distance {where}"
            rows.append(
                f'<span class="label">head {h + 1}</span>'
                f'<svg viewBox="0 0 {len(head)} 1" preserveAspectRatio="none" role="img" aria-label="{escape(words)}" '
                f'data-run="{run}" data-layer="{l}" data-head="{h}"><path d="{columns(head, peak)}"/></svg>'
                f'<span class="peak">{100 * peak:.0f}%</span>'
            )
    farthest = attention.first + len(attention.weights[0][0]) * attention.bin - 1
    axis = f'<div class="axis"><span>{attention.first}</span><span>{unit} back</span><span>{farthest}</span></div>'
    return f'<div class="heads">{"".join(rows)}{axis}</div>'


def columns(heights: list[float], highest: float) -> str:
    """The outline of columns as a path in a box one high, with a little air between them."""
    tall = [0.96 * (height / (highest or 1)) ** 0.5 for height in heights]
    return "".join(f"M{x + 0.08:.2f} 1V{1 - h:.3f}H{x + 0.92:.2f}V1Z" for x, h in enumerate(tall) if h > 0)


def provenance(found: list[Model], given: Mapping[str, Any]) -> str:
    boxes = []
    for model in found:
        for run in model.runs:
            facts = {
                **run.provenance,
                "data": run.about,
                "trained": f"{run.tokens:,} {run.unit}, {time_text(run.seconds)}",
            }
            config = escape(json.dumps(finite(run.config), indent=2))
            boxes.append(
                f'<div class="card" {color(model)}>{shown(model, run)}{facts_list(facts)}'
                f"<details><summary>The whole config</summary><pre>{config}</pre></details></div>"
            )
    page = {name: str(words) for name, words in {**made_by(), **given}.items()}
    boxes.append(f'<div class="card"><h3>This report</h3>{facts_list(page)}</div>')
    return f'<section><h2>Where this comes from</h2><div class="runs">{"".join(boxes)}</div></section>'


def facts_list(facts: dict[str, str]) -> str:
    def words(name: str, text: str) -> str:
        if "command" not in name:
            return "<br>".join(map(escape, text.splitlines()))
        # Lines of a command break between its words only.
        lines = [
            " ".join(f'<span class="word">{escape(word)}</span>' for word in line.split(" "))
            for line in text.splitlines()
        ]
        return "<br>".join(f"<code>{line}</code>" for line in lines)

    items = "".join(f"<dt>{escape(name)}</dt><dd>{words(name, str(text))}</dd>" for name, text in facts.items())
    return f"<dl>{items}</dl>"
