"""Export one decoding step as a graph, with named states as inputs and outputs, for `torch.export` and ONNX.

    logits, countN, memoryN = step(token, count, memory)        token (B,) int64 -> logits (B, V)

The initial state is all zeros. Each output `...N` is the next input of that name. The batch size B is free.
The graph is the reference forward of the core for one token. Only Staircase has its own step here, because the slots
that a token attends to depend on its position, which is not known when the graph is traced: the step attends to all
slots that are visible at any position in a chunk, and masks the others.

Letters: B batch, V vocabulary size, D width, C chunk, N passes, M computed passes.
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
from stairwell.export.task_json import check_sizes, vocabulary_json
from stairwell.layers import Layer, Slots
from stairwell.models import LanguageModel
from stairwell.outputs import OutputType, contains_bytes, write_output
from stairwell.state import FieldType
from stairwell.version import __version__

TRACED_BATCH, TRACED_SLOTS = 2, 3  # sizes of 0 and 1 would be traced as constants
VERSION_FILE = "stairwell"  # in the archive of torch.export
ONNX = OutputType(
    "an ONNX model of stairwell", contains_bytes(b"\x12\x09stairwell")
)  # the protobuf field producer_name
GRAPH = OutputType("a torch.export graph of stairwell", lambda path: has_version_file(path))


class StepModule(nn.Module):
    """One decoding step of a model, from tensors to tensors. `names` are the tensors of the state, in order."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        if not isinstance(model, LanguageModel):
            raise UserError(f"only a LanguageModel can be exported as a graph, not a {type(model).__name__}")
        if model.config.adaptive:
            raise UserError(
                "a graph does not support adaptive embeddings and softmax; train with an empty model.adaptive"
            )
        self.model = copy.deepcopy(model).eval()
        core = self.model.core
        # Cutting the slots at a learned span only saves time, and the value of a parameter cannot be traced.
        if isinstance(core, TransformerCore):
            core.attention_span = lambda layer, limit: limit  # type: ignore[method-assign]
        self.initial = core.init_state(TRACED_BATCH)
        leaves = list(self.initial.leaves())
        # `croppable` is not needed, and tensors without elements cannot be passed.
        used = [leaf for leaf in leaves if leaf.tensor.numel() or leaf.field_type is FieldType.GROWING]
        self.names = [leaf.path for leaf in used if leaf.path != "croppable"]
        self.growing = {leaf.path for leaf in leaves if leaf.field_type is FieldType.GROWING}

    def forward(self, token: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        model, state = self.model, self.make_state(token, tensors)
        x = model.embed(token[:, None], state.count[:, None])
        y, after = core_step(model.core, x, state)
        named = dict(after.tensors())
        return (model.head(model.norm(y))[:, 0], *(named[name] for name in self.names))

    def make_state(self, token: Tensor, tensors: tuple[Tensor, ...]) -> Any:
        """Return the state of these tensors; the others are zero."""
        named = dict(zip(self.names, tensors, strict=True))
        batch = token.shape[0]
        zeros = {leaf.path: leaf.tensor.new_zeros(batch, *leaf.tensor.shape[1:]) for leaf in self.initial.leaves()}
        return self.initial._with_tensors(named.get(name, zeros[name]) for name in zeros)

    def inputs(self, batch: int = 1, slots: int = 1) -> dict[str, Tensor]:
        """Return the initial state. Tensors that grow have `slots` slots, which are masked: some runtimes do not
        support empty tensors."""
        tensors = {name: tensor for name, tensor in self.model.core.init_state(batch).tensors() if name in self.names}
        for name in self.growing:
            tensors[name] = tensors[name].new_zeros(batch, slots, *tensors[name].shape[2:])
        return tensors


def core_step(core: Any, x: Tensor, state: Any) -> tuple[Tensor, CoreState]:
    """Apply a core to one token, x (B, 1, D)."""
    if isinstance(core, Staircase):
        return staircase_step(core, x, state)
    y, after = core.reference(x, state)
    return y, after


def staircase_step(core: Staircase, x: Tensor, state: StaircaseState) -> tuple[Tensor, StaircaseState]:
    """Apply `Staircase.reference` to one token, x (B, 1, D)."""
    M, count = core.config.M, state.count
    cached, inputs = x, []
    h = x
    for n in range(1, core.config.computed + 1):
        layer_inputs = []
        for l, layer in enumerate(core.layers):
            layer_inputs.append(h)
            slots = staircase_slots(core, layer, l, h, n, state)
            h = core.apply_layer(layer, (n - 1) * len(core.layers) + l, h, slots, None, None, 0, 1)
        inputs.append(torch.stack(layer_inputs, 2))
        if n == M:
            cached = h
    count = count + 1
    passes = tuple(slide(old, new, count, None) for old, new in zip(state.passes, inputs, strict=True))
    cache = state.cache
    if isinstance(core, GlobalCachedStaircase):
        cache = torch.cat([cache, cached], 1)
    elif core.config.caches:
        cache = slide(cache, cached, count, None)
    return h, dataclasses.replace(state, count=count, passes=passes, cache=cache)


def staircase_slots(core: Staircase, layer: Layer, l: int, h: Tensor, n: int, state: StaircaseState) -> Slots:
    """Return what layer l attends to at pass n: chunk i-d at pass n+d, from the cache where that pass is not computed,
    and the token h (B, 1, D) itself."""
    C, count = core.config.chunk, state.count
    keys: list[Tensor] = []
    values: list[Tensor] = []
    distances: list[Tensor] = []
    visible: list[Tensor] = []
    for part in core.config.visible_ranges(n):
        memory = state.cache if part.pass_number is None else state.passes[part.pass_number - 1][:, :, l]
        memory, nearest = visible_memory(memory, C, part)
        if isinstance(memory.shape[1], int) and not memory.shape[1]:  # in a chunk of one token
            continue
        back = torch.arange(memory.shape[1] - 1, -1, -1, device=h.device) + nearest
        part_keys, part_values = layer.keys_values(memory)
        keys.append(part_keys)
        values.append(part_values)
        distances.append(back + 1)
        visible.append(part.visible(back, count, C))
    own_keys, own_values = layer.keys_values(h)
    distance = torch.cat([*distances, torch.zeros(1, dtype=torch.int64, device=h.device)])[None]
    mask = torch.cat([*visible, torch.ones_like(count, dtype=torch.bool)[:, None]], 1)
    return Slots([*keys, own_keys], [*values, own_values], distance, mask[:, None])


def visible_memory(memory: Tensor, C: int, part: VisibleRange) -> tuple[Tensor, int]:
    """Return the slots that are visible at some position in a chunk, and how far back the newest of them is."""
    near, slots = max(part.nearest - 1, 0) * C, memory.shape[1]
    if part.farthest is None:
        return memory, 0
    far = (part.farthest + 1) * C - 1
    return memory[:, slots - far : slots - near], near


def trace(step: StepModule) -> torch.export.ExportedProgram:
    """Trace the step. The batch size and the number of growing slots are dynamic."""
    batch = torch.export.Dim("batch", min=1)
    tokens = torch.export.Dim("tokens", min=1)
    examples = step.inputs(TRACED_BATCH, TRACED_SLOTS)
    token = torch.zeros(TRACED_BATCH, dtype=torch.int64, device=next(step.parameters()).device)
    shapes = tuple({0: batch, 1: tokens} if name in step.growing else {0: batch} for name in step.names)
    with torch.no_grad():
        return torch.export.export(step, (token, *examples.values()), dynamic_shapes=({0: batch}, shapes))


def export_torch(model: LanguageModel, path: str | os.PathLike[str]) -> None:
    """Write one decoding step as a file of `torch.export`."""
    with exporter_silenced():
        program = trace(StepModule(model))
        write_output(path, GRAPH, lambda temporary: save_program(program, temporary))


def save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    # torch.export.save requires the suffix .pt2 of a path, and hides errors such as a full disk of a file.
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={VERSION_FILE: __version__})
    path.write_bytes(content.getvalue())


def has_version_file(path: Path) -> bool:
    """Return whether a file was written by `save_program`."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(f"/extra/{VERSION_FILE}") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False


def export_onnx(
    model: LanguageModel, path: str | os.PathLike[str], vocabulary: text.Vocabulary | None = None
) -> dict[str, list[str]]:
    """Write one decoding step as an ONNX file, with the vocabulary in its metadata. Return the names of its inputs and
    outputs."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError("ONNX is not installed: pip install 'stairwell[onnx]'") from None
    step = StepModule(model)
    if vocabulary is not None:
        check_sizes("the model", model, vocabulary)
    names = {"inputs": ["token", *step.names], "outputs": ["logits", *(f"{name}N" for name in step.names)]}
    with exporter_silenced():
        exported = torch.onnx.export(
            trace(step), dynamo=True, input_names=names["inputs"], output_names=names["outputs"], verbose=False
        )
    assert exported is not None
    graph = exported.model_proto
    rename_dimensions(graph, step)
    core = name_of(model.config.core) or type(model.config.core).__name__
    metadata = {"stairwell": __version__, "core": core}
    if vocabulary is not None:
        metadata["vocabulary"] = json.dumps(vocabulary_json(vocabulary))
    onnx.helper.set_model_props(graph, metadata)
    onnx.checker.check_model(graph)
    graph.producer_name, graph.producer_version = "stairwell", __version__
    write_output(path, ONNX, lambda temporary: temporary.write_bytes(graph.SerializeToString()))
    return names


def rename_dimensions(graph: Any, step: StepModule) -> None:
    """Name the dynamic dimensions `batch` and `tokens`."""
    inputs = {value.name: value.type.tensor_type.shape.dim for value in graph.graph.input}
    names = {inputs["token"][0].dim_param: "batch"} | {inputs[name][1].dim_param: "tokens" for name in step.growing}
    for value in [*graph.graph.input, *graph.graph.output, *graph.graph.value_info]:
        for size in value.type.tensor_type.shape.dim:
            for symbol, name in names.items():
                if size.dim_param:
                    size.dim_param = size.dim_param.replace(symbol, name)


@contextmanager
def exporter_silenced() -> Iterator[None]:
    """Silence messages of the exporter about optional packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
