"""Samples of a sequence-to-sequence model beside references, and its attention between source and target, drawn."""

from __future__ import annotations

from html import escape

from stairwell.report.compare import Model, one_run_each
from stairwell.report.parts import color, section
from stairwell.report.written import Sentence


def written_section(found: list[Model]) -> str:
    """Samples beside references, and the attention between source and target; empty where no model has any."""
    boxes = []
    for model, _, sentences in one_run_each(found, lambda run: run.sentences):
        shown = "".join(map(sentence_box, sentences))
        boxes.append(f'<div class="card" {color(model)}><h3>{escape(model.name)}</h3>{shown}</div>')
    note = (
        "Sentences of the test data as the models write them by beam search. In the pictures every row "
        "is a token that was written, every column one of the source; the darker, the more attention, averaged over "
        "heads and layers."
    )
    return section("What they write, and where they look", note, boxes)


def sentence_box(sentence: Sentence) -> str:
    rows = (("source", sentence.source), ("wanted", sentence.wanted), ("written", sentence.said))
    texts = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows)
    return f"<dl>{texts}</dl>{picture(sentence) if sentence.attention else ''}"


def picture(sentence: Sentence) -> str:
    """The attention as squares, with the tokens beside and above them."""
    size, left, top = 18, 96, 84
    width, height = left + size * len(sentence.source_tokens), top + size * len(sentence.said_tokens)
    marks = []
    for j, token in enumerate(sentence.source_tokens):
        x = left + size * j + size / 2
        marks.append(f'<text transform="translate({x + 4:.0f} {top - 6}) rotate(-55)">{escape(token)}</text>')
    for t, (token, row) in enumerate(zip(sentence.said_tokens, sentence.attention)):
        y = top + size * t
        marks.append(f'<text x="{left - 6}" y="{y + 13}" text-anchor="end">{escape(token)}</text>')
        marks += [
            f'<rect x="{left + size * j}" y="{y}" width="{size - 1}" height="{size - 1}" fill-opacity="{weight:.3g}">'
            f"<title>{escape(token)} looks at {escape(sentence.source_tokens[j])}: {100 * weight:.0f}%</title></rect>"
            for j, weight in enumerate(row)
        ]
    counts = len(sentence.said_tokens), len(sentence.source_tokens)
    words = f"attention of the {counts[0]} tokens written to the {counts[1]} of the source"
    return (
        f'<svg class="looks" viewBox="0 0 {width} {height}" style="max-width: {width}px" role="img" '
        f'aria-label="{words}">{"".join(marks)}</svg>'
    )
