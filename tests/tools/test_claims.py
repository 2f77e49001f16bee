"""Claims in the text of the papers: every number of ours is on a page that the claim links to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stairwell.experiments.papers import CATALOG
from tools import claims, publish

DOCS = publish.PAGE.parent
ALL = (*claims.FEEDBACK, *claims.STAIRCASES)
RESULTS = publish.published()
# Sizes that identify a model or a data set and are not measurements.
SIZES = re.compile(r"\b(?:[Ww]idth|[Ll]ayers?|[Bb]atches of|[Cc]ounts? up to|Up to|Multi)\s?\d+")
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)")


def linked(claim: claims.Claim) -> list[Path]:
    return [DOCS / path.split("#")[0] for path in re.findall(r"\]\(([^)]+)\)", claim.ours)]


def numbers(text: str) -> set[str]:
    return {number.strip(",") for number in NUMBER.findall(re.sub(r"\[[^]]*\]\([^)]*\)|`[^`]*`", "", text))}


@pytest.mark.parametrize("claim", ALL, ids=lambda claim: f"{claim.where}: {claim.claim[:40]}")
def test_our_numbers_are_on_the_linked_pages(claim: claims.Claim) -> None:
    if not claim.outcome or claim.outcome == "not run":
        return
    pages = linked(claim)
    assert pages and all(page.exists() for page in pages), "a measured number needs a page"
    known = numbers(" ".join(page.read_text(encoding="utf-8") for page in pages))
    missing = numbers(SIZES.sub("", claim.ours)) - known
    assert not missing, f"not on {', '.join(page.name for page in pages)}: {sorted(missing)}"


@pytest.mark.parametrize("claim", ALL, ids=lambda claim: f"{claim.where}: {claim.claim[:40]}")
def test_a_claim_is_measured_or_belongs_to_an_experiment(claim: claims.Claim) -> None:
    if claim.outcome:
        assert not claim.experiment and claim.ours
        assert claim.outcome in {"agrees", "partly", "does not", "inconclusive", "not run"}
    else:
        assert not claim.ours and CATALOG[claim.experiment]("laptop") is not None
    assert "|" not in claim.claim + claim.ours


def test_a_claim_of_an_experiment_follows_its_result() -> None:
    claim = claims.Claim("4.3.3", "A claim", experiment="feedback.table3")
    without = {name: result for name, result in RESULTS.items() if name[0] != "feedback.table3"}
    assert publish.claim_row(claim, without).startswith("| 4.3.3 | A claim | not run | feedback.table3: about ")
    result = {"outcome": "does not agree", "verdict": "Does not agree: 19.0 and 20.0. More.", "title": "x"}
    row = publish.claim_row(claim, {**without, ("feedback.table3", "laptop"): result})
    assert row == (
        "| 4.3.3 | A claim | does not | 19.0 and 20.0 ([feedback.table3](results/feedback.table3-laptop.md)) |"
    )


def test_every_claim_is_on_the_page() -> None:
    lines = publish.PAGE.read_text(encoding="utf-8").splitlines()
    for claim in ALL:
        assert publish.claim_row(claim, RESULTS) in lines, "run python -m tools.publish"
