"""`vocabulary.js` under node encodes and decodes like stairwell/text.py."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from stairwell import text
from stairwell.export.task_json import vocabulary_json
from tests.export.test_engine import EXPORT, run_node

pytestmark = pytest.mark.quick

TRAINING = (
    "It's a long way;  we'll go on!\n\tHe said 42 times: “naïve café”\r\n"
    "to be, or not to be\n\n日本語 𝒳𝒴 x² aaaa aaaa\xa0end\n"
)
ALPHABET = "aehilnot  \n\t'12.,;“é日𝒳\xa0\x1c\u2028\ufeff"


def texts() -> list[str]:
    rng = random.Random(0)
    random_texts = ["".join(rng.choices(ALPHABET, k=rng.randint(1, 30))) for _ in range(150)]
    words = [" ".join(rng.choices(TRAINING.split(), k=8)) + "\nnot in it" for _ in range(20)]
    return [TRAINING, "", "\n", " ", "  two  spaces ", "it'll don't 's", "aaa aaaaa aaaaaaa", *random_texts, *words]


VOCABULARIES: list[text.Vocabulary] = [
    text.Bytes(),
    text.Characters.build([TRAINING]),
    text.Words.build([TRAINING]),
    text.Words.build([TRAINING], end_of_line=False, limit=9),
    text.Separated.build([TRAINING]),
    text.BPE.build([TRAINING * 3], 300),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, object]]]:
    file = tmp_path_factory.mktemp("cases") / "cases.json"
    cases = [{"spec": vocabulary_json(vocabulary), "texts": texts()} for vocabulary in VOCABULARIES]
    file.write_text(json.dumps(cases))
    script = EXPORT / "vocabulary.js"
    return run_node(Path(__file__).with_name("vocabulary_cases.js"), script, file)  # type: ignore[no-any-return]


@pytest.mark.parametrize("number", range(len(VOCABULARIES)), ids=lambda n: f"{VOCABULARIES[n].type_name}-{n}")
def test_vocabulary_encodes_and_decodes_like_python(number: int, results: list[list[dict[str, object]]]) -> None:
    vocabulary = VOCABULARIES[number]
    for given, result in zip(texts(), results[number], strict=True):
        try:
            ids = vocabulary.encode(given).tolist() if given else []
        except text.UnknownTokenError:
            assert "is not in the vocabulary" in str(result["error"]), given
            continue
        assert result == {"ids": ids, "decoded": vocabulary.decode(ids)}, given
