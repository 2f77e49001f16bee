"""The pages of results are those that the files in results/ generate."""

from __future__ import annotations

import re

import pytest

from stairwell.experiments.papers import CATALOG
from tools import publish

RESULTS = publish.published()


@pytest.mark.parametrize("name", RESULTS, ids="-".join)
def test_the_page_of_an_experiment_is_up_to_date(name: tuple[str, str]) -> None:
    page = (publish.PAGES / f"{'-'.join(name)}.md").read_text(encoding="utf-8")
    assert page == publish.experiment_page(RESULTS[name]), "run python -m tools.publish"


def test_the_matrix_has_one_line_for_every_experiment() -> None:
    lines = publish.PAGE.read_text(encoding="utf-8").splitlines()
    for name in CATALOG.keys() - {"demo"}:
        outcomes = [line for line in lines if line.startswith((f"| [{name}](", f"| {name} |")) and line.count("|") == 5]
        assert len(outcomes) == 1, name
        published = [result["outcome"] for (other, _), result in RESULTS.items() if other == name]
        expected = publish.SHORT_OUTCOMES.get(published[0], published[0]) if published else "not run"
        assert outcomes[0].split(" | ")[2] == expected


def test_the_counts_of_outcomes_are_those_of_the_rows() -> None:
    text = publish.PAGE.read_text(encoding="utf-8")
    tables, claimed = re.findall(r"(\d+) [a-z ]+ \(([^)]*)\)", publish.counts(RESULTS).replace("\n", " "))
    papers = [name for name in CATALOG if name.startswith(("feedback.", "staircase."))]
    assert int(tables[0]) == len(papers) and publish.counts(RESULTS) in text
    for total, listed in (tables, claimed):
        assert sum(int(part.split(": ")[1]) for part in listed.split(", ")) == int(total)
    run = {name for name, _ in RESULTS if name in papers}
    assert f"not run: {len(papers) - len(run)}" in tables[1]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("Does not agree: at 400 digits both fail.", "At 400 digits both fail."),
        ("Agrees in sign: it falls.", "In sign: it falls."),
        ("All three models count.", "All three models count."),
    ],
)
def test_the_outcome_is_stated_once(verdict: str, expected: str) -> None:
    assert publish.finding({"verdict": verdict}) == expected
