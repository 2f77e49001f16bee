"""One token as a graph: named states in, named states out, for `torch.export` and ONNX.

    logits, countN, memoryN = step(token, count, memory)        token (B,) int64 -> logits (B, V)

What a fresh row remembers is all zeros, so a stream begins with zeros of the shapes that the graph asks for, and feeds
each output `...N` back as the input of that name. Rows are independent; B is free. Everything is the reference walk of
the core for one token; only a Staircase says here once more what it sees, since a graph cannot ask a token for its age:
it looks at all slots that any phase of a chunk could see, and masks. Letters: B rows, V symbols, C chunk, N passes.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import logging
import os
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stairwell import text
from stairwell.cores import name_of
from stairwell.cores.core import CoreState, TransformerCore
from stairwell.cores.staircase import GlobalCachedStaircase, Staircase, StaircaseState, VisibleRange
from stairwell.cores.time import slide
from stairwell.errors import UserError
from stairwell.export.subject import vocabulary_json
from stairwell.field_types import FieldType
from stairwell.layers import Layer, Slots
from stairwell.models import LanguageModel
from stairwell.outputs import Kind, marked, write_output
from stairwell.version import __version__

TRACED = 2, 3  # rows and growing slots to trace with: sizes of 0 and 1 would be taken for constants
NOTE = "stairwell"  # of a graph of torch.export: a file in its archive
ONNX = Kind("an ONNX model of stairwell", marked(b"\x12\x09stairwell"))  # the field producer_name, in protobuf
GRAPH = Kind("a torch.export graph of stairwell", lambda path: has_note(path))


class Step(nn.Module):
    """A model's step from tensor to tensor, in the order of `names`."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        if not isinstance(model, LanguageModel):
            raise UserError(
                f"a graph holds the step of a model of one stream of symbols, not of a {type(model).__name__}"
            )
        if model.config.adaptive:
            raise UserError("a graph cannot hold adaptive embeddings and softmax; train with an empty model.adaptive")
        self.model = copy.deepcopy(model).eval()
        core = self.model.core
        # A learned span only saves work where it ends, and a graph cannot ask a parameter for its value.
        if isinstance(core, TransformerCore):
            core.reach = lambda layer, most: most  # type: ignore[method-assign]
        self.fresh = core.init_state(TRACED[0])
        leaves = list(self.fresh.leaves())
        # How far a state can be cropped matters to nobody here, and what has no slots cannot be handed over.
        used = [leaf for leaf in leaves if leaf.tensor.numel() or leaf.role is FieldType.GROWING]
        self.names = [leaf.path for leaf in used if leaf.path != "croppable"]
        self.growing = {leaf.path for leaf in leaves if leaf.role is FieldType.GROWING}

    def forward(self, token: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        model, state = self.model, self.state(token, given)
        x = model.embed(token[:, None], state.count[:, None])
        y, after = walk(model.core, x, state)
        tensors = dict(after.tensors())
        return (model.head(model.norm(y))[:, 0], *(tensors[name] for name in self.names))

    def state(self, token: Tensor, given: tuple[Tensor, ...]) -> Any:
        """The state of the given tensors; what is not among them is empty."""
        named = dict(zip(self.names, given, strict=True))
        empty = {leaf.path: leaf.tensor for leaf in self.fresh.leaves()}
        rows = token.shape[0]
        empty |= {name: tensor.new_zeros(rows, *tensor.shape[1:]) for name, tensor in empty.items()}
        return self.fresh._with(named.get(name, empty[name]) for name in empty)

    def inputs(self, rows: int = 1, grown: int = 1) -> dict[str, Tensor]:
        """What a fresh stream of so many rows begins with; `grown` slots of what grows: one, which
        nobody ever sees, where runtimes stumble over none."""
        tensors = {name: tensor for name, tensor in self.model.core.init_state(rows).tensors() if name in self.names}
        for name in self.growing:
            tensors[name] = tensors[name].new_zeros(rows, grown, *tensors[name].shape[2:])
        return tensors


def walk(core: Any, x: Tensor, state: Any) -> tuple[Tensor, CoreState]:
    """One token, x (B, 1, D), by the core's own walk; a Staircase by the one below."""
    if isinstance(core, Staircase):
        return climb(core, x, state)
    y, after = core.walk(x, state, None, None, None)
    return y, after


def climb(core: Staircase, x: Tensor, state: StaircaseState) -> tuple[Tensor, StaircaseState]:
    """`Staircase.walk` for one token."""
    M, age = core.config.M, state.count
    cached, inputs = x, []
    h = x
    for n in range(1, core.config.computed + 1):
        layer_inputs = []
        for l, layer in enumerate(core.layers):
            layer_inputs.append(h)
            slots = sight(core, layer, l, h, n, state, age)
            h = core.apply_layer(layer, (n - 1) * len(core.layers) + l, h, slots, None, None, 0, 1)
        inputs.append(torch.stack(layer_inputs, 2))
        if n == M:
            cached = h
    count = age + 1
    passes = tuple(slide(old, new, count, None) for old, new in zip(state.passes, inputs, strict=True))
    cache = state.cache
    if isinstance(core, GlobalCachedStaircase):
        cache = torch.cat([cache, cached], 1)
    elif core.config.caches:
        cache = slide(cache, cached, count, None)
    return h, dataclasses.replace(state, count=count, passes=passes, cache=cache)


def sight(core: Staircase, layer: Layer, l: int, h: Tensor, n: int, state: StaircaseState, age: Tensor) -> Slots:
    """What a layer sees at pass n: chunk i-d at pass n+d, from the cache where that pass is not computed, and the
    token itself. h (B, 1, D), age (B,)"""
    C = core.config.chunk
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # keys, values, how far back, visible
    for part in core.config.in_sight(n):
        memory = state.cache if part.pass_number is None else state.passes[part.pass_number - 1][:, :, l]
        memory, near = reach_of(memory, C, part)
        if isinstance(memory.shape[1], int) and not memory.shape[1]:  # a chunk of one token has nothing before itself
            continue
        back = torch.arange(memory.shape[1] - 1, -1, -1, device=h.device) + near
        parts.append((*layer.keys_values(memory), back, part.sees(back, age, C)))
    keys, values = layer.keys_values(h)
    own = torch.zeros(1, dtype=torch.int64, device=h.device)
    distance = torch.cat([*(slot + 1 for _, _, slot, _ in parts), own])[None]
    visible = torch.cat([*(in_sight for *_, in_sight in parts), torch.ones_like(age, dtype=torch.bool)[:, None]], 1)
    keys_of, values_of = [k for k, *_ in parts], [v for _, v, *_ in parts]
    return Slots([*keys_of, keys], [*values_of, values], distance, visible[:, None])


def reach_of(memory: Tensor, C: int, sight: VisibleRange) -> tuple[Tensor, int]:
    """The slots that some token sees, whatever its phase, and how far back the newest of them is."""
    near, slots = max(sight.nearest - 1, 0) * C, memory.shape[1]
    if sight.farthest is None:
        return memory, 0
    far = (sight.farthest + 1) * C - 1
    return memory[:, slots - far : slots - near], near


def graph_of(step: Step) -> torch.export.ExportedProgram:
    """The step as a graph of PyTorch; rows, and slots that grow, are free."""
    rows = torch.export.Dim("batch", min=1)
    grown = torch.export.Dim("tokens", min=1)
    examples = step.inputs(*TRACED)
    token = torch.zeros(TRACED[0], dtype=torch.int64, device=next(step.parameters()).device)
    shapes = tuple({0: rows, 1: grown} if name in step.growing else {0: rows} for name in step.names)
    with torch.no_grad():
        return torch.export.export(step, (token, *examples.values()), dynamic_shapes=({0: rows}, shapes))


def export_torch(model: LanguageModel, path: str | os.PathLike[str]) -> None:
    """Write the step as a file of `torch.export`."""
    with quietly():
        program = graph_of(Step(model))
        write_output(path, GRAPH, lambda temporary: save_program(program, temporary))


def save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    # Given a name, torch insists on its ending; given a file, it does not tell a full disk from other errors.
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={NOTE: __version__})
    path.write_bytes(content.getvalue())


def has_note(path: Path) -> bool:
    """Whether a file is a graph that `save_program` wrote."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(f"/extra/{NOTE}") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def export_onnx(
    model: LanguageModel, path: str | os.PathLike[str], vocabulary: text.Vocabulary | None = None
) -> dict[str, list[str]]:
    """Write the step as an ONNX file; its inputs and outputs. The vocabulary goes along as a note."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("ONNX is not installed: pip install 'stairwell[onnx]'") from None
    step = Step(model)
    names = {"inputs": ["token", *step.names], "outputs": ["logits", *(f"{name}N" for name in step.names)]}
    with quietly():
        exported = torch.onnx.export(
            graph_of(step), dynamo=True, input_names=names["inputs"], output_names=names["outputs"], verbose=False
        )
    assert exported is not None
    graph = exported.model_proto
    name_sizes(graph, step)
    core = name_of(model.config.core) or type(model.config.core).__name__
    note = {"stairwell": __version__, "core": core}
    if vocabulary is not None:
        note["vocabulary"] = json.dumps(vocabulary_json(vocabulary))
    onnx.helper.set_model_props(graph, note)
    onnx.checker.check_model(graph)
    graph.producer_name, graph.producer_version = "stairwell", __version__
    write_output(path, ONNX, lambda temporary: temporary.write_bytes(graph.SerializeToString()))
    return names


def name_sizes(graph: Any, step: Step) -> None:
    """Sizes that are free get names that people know: `batch`, and `tokens` of what grows."""
    inputs = {value.name: value.type.tensor_type.shape.dim for value in graph.graph.input}
    known = {inputs["token"][0].dim_param: "batch"} | {inputs[name][1].dim_param: "tokens" for name in step.growing}
    for value in [*graph.graph.input, *graph.graph.output, *graph.graph.value_info]:
        for size in value.type.tensor_type.shape.dim:
            for symbol, name in known.items():
                if size.dim_param:
                    size.dim_param = size.dim_param.replace(symbol, name)


@contextmanager
def quietly() -> Iterator[None]:
    """Without what the exporter has to say about packages that nobody here needs."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
