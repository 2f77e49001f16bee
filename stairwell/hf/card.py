"""The model card of an exported folder, which the Hugging Face Hub shows: how to load the model.

Without stairwell, transformers does not recognize the model and recommends an update of transformers, which does not
help; the card states what does.
"""

from __future__ import annotations

import json
from pathlib import Path

from stairwell.files import write_text
from stairwell.hf.base import StairwellModel

FILE = "README.md"
CARD = """\
---
# The license is yours to choose, for example:
# license: apache-2.0
library_name: stairwell
pipeline_tag: {pipeline}
tags:
- stairwell
- {core}
---

# {title}

A {core} model with {parameters:,} parameters, trained and exported by stairwell.

## How to load it

Install stairwell first, from a clone of its repository (the package `stairwell` on the public package index is another
project). Without it, transformers does not recognize the model and recommends an update, which does not help.

```sh
pip install ".[hf]"
```

```py
import stairwell.hf  # registers the model with transformers
from transformers import {names}

model = {auto}.from_pretrained("path/to/this/folder")
{tokenizers}```
"""
TOKENIZER = 'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")\n'
TARGET = 'target_tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder", subfolder="target")\n'
# Pipeline tags of the Hub by task; any other task is text generation.
PIPELINES = {"translation": "translation", "summarization": "summarization"}


def write_card(model: StairwellModel, auto: str, folder: Path) -> None:
    """Write the card of a model that has been saved in `folder`; `auto` is the Auto class that loads it."""
    run = json.loads((model.config.run or {}).get("config.json", "{}"))
    name = str(run.get("name", ""))  # TASK/CORE
    tokenizers = TOKENIZER if (folder / "tokenizer_config.json").exists() else ""
    if (folder / "target").exists():
        tokenizers += TARGET
    card = CARD.format(
        pipeline=PIPELINES.get(name.partition("/")[0], "text-generation"),
        core=model.config.core,
        title=name or "stairwell model",
        parameters=sum(parameter.numel() for parameter in model.model.parameters()),
        names=f"{auto}, AutoTokenizer" if tokenizers else auto,
        auto=auto,
        tokenizers=tokenizers,
    )
    write_text(folder / FILE, card)
