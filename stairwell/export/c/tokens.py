"""Language models and trackers as C: a token in, the logits of the outputs out."""

from __future__ import annotations

from dataclasses import dataclass

from stairwell import text
from stairwell.export.c.parameters import Parameters, float_literal, string_literal, wrapped
from stairwell.export.c.source import ModelSource
from stairwell.export.task_json import check_sizes, task_json
from stairwell.models import LanguageModel
from stairwell.models.embedding import Embedding, Head
from stairwell.tasks import StreamTask
from stairwell.tasks.labeled import LabeledVocabulary
from stairwell.tasks.language import Language


@dataclass(frozen=True)
class Names:
    """The names of the tokens and of the outputs."""

    inputs: list[bytes]
    outputs: list[bytes]


def names_of(model: LanguageModel, task: StreamTask | text.Vocabulary | None) -> Names:
    """Return the names of a task or vocabulary; numbers without one."""
    if task is None:
        return Names(*([b"%d" % i for i in range(size)] for size in (model.config.inputs, model.config.V)))
    check_sizes("the model", model, task)
    vocabulary = task.vocabulary if isinstance(task, Language) else task
    if isinstance(vocabulary, text.Vocabulary) and not isinstance(vocabulary, LabeledVocabulary):
        tokens = [token_bytes(vocabulary, token) for token in range(vocabulary.size)]
        return Names(tokens, tokens)
    described = task_json(task)
    return Names(*([name.encode("utf-8") for name in described[key]] for key in ("tokens", "labels")))


def token_bytes(vocabulary: text.Vocabulary, token: int) -> bytes:
    content = vocabulary.token_bytes(token)
    return vocabulary.decode([token]).encode("utf-8") if content is None else content


def tokens_source(model: LanguageModel, names: Names, parameters: Parameters) -> ModelSource:
    """Add the embedding and the head."""
    assert isinstance(model.embedding, Embedding) and isinstance(model.head, Head)
    scale, tied = model.embedding.scale, model.head.embedding is not None
    head = parameters.matrix("head", model.embedding.vectors if tied else model.head.vectors)
    if not tied:
        parameters.floats("embedding", model.embedding.vectors * scale)
        embedding = "embedding[token * WIDTH + i]"
    elif parameters.quantized:
        embedding = f"(float)head[token * WIDTH + i] * head_scales[token] * {float_literal(scale)}"
    else:
        embedding = f"head[token * WIDTH + i] * {float_literal(scale)}"
    return ModelSource(
        template="tokens",
        constants=[],
        functions=set(),
        context={
            "embedding": embedding,
            "head": f"(matrix){head}" if parameters.quantized else head,
            "head_bias": "0" if model.head.bias is None else parameters.floats("head_bias", model.head.bias),
            "inputs": model.config.inputs,
            "outputs": model.config.V,
            "input_names": wrapped([string_literal(name) for name in names.inputs]),
            "output_names": wrapped([string_literal(name) for name in names.outputs]),
        },
        adds=False,
    )
