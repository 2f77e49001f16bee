"""Export one decoding step as a graph, with named states as inputs and outputs, for `torch.export` and ONNX.

    logits, countN, memoryN = step(token, count, memory)        token (B,) int64 -> logits (B, V)

The initial state is all zeros. Each output `...N` is the next input of that name. The batch size B is free.
The graph of a transformer core is that of its step description (`stairwell.cores.step`). What a token attends to
depends on its position, which is not known when the graph is traced: the step attends to all slots that are visible at
any position in a chunk, and masks the others. The graph of any other core is its reference forward for one token.

Letters: B batch, V vocabulary size, D width.
"""

from __future__ import annotations

import copy
import inspect
import io
import json
import logging
import os
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stairwell import text
from stairwell.cores import name_of, step_of
from stairwell.cores.core import CoreState, TransformerCore
from stairwell.cores.sliding_window import slide
from stairwell.cores.step import Application, StepDescription
from stairwell.errors import MissingPackage, UserError
from stairwell.export.task_json import check_sizes, vocabulary_json
from stairwell.layers import Slots
from stairwell.models import LanguageModel
from stairwell.outputs import OutputType, contains_bytes, write_output
from stairwell.state import FieldType
from stairwell.version import __version__

TRACED_BATCH, TRACED_SLOTS = 2, 3  # sizes of 0 and 1 would be traced as constants
VERSION_FILE, NAMES_FILE = "stairwell", "names"  # in the archive of torch.export
ONNX = OutputType(
    "an ONNX model of stairwell", contains_bytes(b"\x12\x09stairwell")
)  # the protobuf field producer_name
GRAPH = OutputType("a torch.export graph of stairwell", lambda path: has_version_file(path))


class CoreStep(nn.Module):
    """One step of a model with a core, from tensors to tensors. The tensors of the state, `names`, come last, in order.

    A subclass says what else goes in (`arguments`) and comes out (`output_names`), and defines `forward`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = copy.deepcopy(model).eval()
        core: Any = self.model.core
        # Cutting the slots at a learned span only saves time, and the value of a parameter cannot be traced.
        if isinstance(core, TransformerCore):
            core.attention_span = lambda layer, limit: limit  # type: ignore[method-assign]
        with torch.no_grad():
            self.description = step_of(core)
        self.initial = core.init_state(TRACED_BATCH)
        leaves = list(self.initial.leaves())
        # `croppable` is not needed, and tensors without elements cannot be passed.
        used = [leaf for leaf in leaves if leaf.tensor.numel() or leaf.field_type is FieldType.GROWING]
        self.names = [leaf.path for leaf in used if leaf.path != "croppable"]
        self.growing = {leaf.path for leaf in leaves if leaf.field_type is FieldType.GROWING}

    def arguments(self, batch: int) -> dict[str, Tensor]:
        """Return examples of the arguments besides the state, by name."""
        raise NotImplementedError

    def output_names(self) -> list[str]:
        """Return the names of what comes out besides the state."""
        raise NotImplementedError

    def dynamic(self, name: str) -> dict[int, str]:
        """Return the names of the dynamic dimensions of an input, by axis."""
        return {0: "batch", 1: "tokens"} if name in self.growing else {0: "batch"}

    def metadata(self) -> dict[str, str]:
        """Return what an ONNX file says about the model."""
        core = self.model.config.core
        return {"stairwell": __version__, "core": name_of(core) or type(core).__name__}

    def apply_core(self, x: Tensor, state: Any, sources: Sequence[Slots] = ()) -> tuple[Tensor, list[Tensor]]:
        """Apply the core to one token, x (B, 1, D). Return its output and the tensors of the next state. `sources`: the
        source as projected by each layer, for cross-attention."""
        if self.description is not None:
            y, after = described_step(self.model.core, self.description, x, state, sources)
        else:
            y, after = self.model.core.reference(x, state)
        named = dict(after.tensors())
        return y, [named[name] for name in self.names]

    def make_state(self, batch: int, tensors: Sequence[Tensor]) -> Any:
        """Return the state of these tensors; the others are zero."""
        named = dict(zip(self.names, tensors, strict=True))
        zeros = {leaf.path: leaf.tensor.new_zeros(batch, *leaf.tensor.shape[1:]) for leaf in self.initial.leaves()}
        return self.initial._with_tensors(named.get(name, zeros[name]) for name in zeros)

    def inputs(self, batch: int = 1, slots: int = 1) -> dict[str, Tensor]:
        """Return the initial state. Tensors that grow have `slots` slots, which are masked: some runtimes do not
        support empty tensors."""
        tensors = {name: tensor for name, tensor in self.model.core.init_state(batch).tensors() if name in self.names}
        for name in self.growing:
            tensors[name] = tensors[name].new_zeros(batch, slots, *tensors[name].shape[2:])
        return tensors


class StepModule(CoreStep):
    """One decoding step of a language model: `forward(token, *state)`."""

    def __init__(self, model: LanguageModel, vocabulary: text.Vocabulary | None = None) -> None:
        if not isinstance(model, LanguageModel):
            raise UserError(f"only a LanguageModel can be exported as a graph, not a {type(model).__name__}")
        if model.config.adaptive:
            raise UserError(
                "a graph does not support adaptive embeddings and softmax; train with an empty model.adaptive"
            )
        if vocabulary is not None:
            check_sizes("the model", model, vocabulary)
        super().__init__(model)
        self.vocabulary = vocabulary

    def arguments(self, batch: int) -> dict[str, Tensor]:
        return {"token": torch.zeros(batch, dtype=torch.int64, device=next(self.parameters()).device)}

    def output_names(self) -> list[str]:
        return ["logits"]

    def metadata(self) -> dict[str, str]:
        vocabulary = {} if self.vocabulary is None else {"vocabulary": json.dumps(vocabulary_json(self.vocabulary))}
        return {**super().metadata(), **vocabulary}

    def forward(self, token: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        state = self.make_state(token.shape[0], tensors)
        x = self.model.embed(token[:, None], state.count[:, None])
        y, after = self.apply_core(x, state)
        return (self.model.head(self.model.norm(y))[:, 0], *after)


def described_step(
    core: Any, d: StepDescription, x: Tensor, state: Any, sources: Sequence[Slots] = ()
) -> tuple[Tensor, CoreState]:
    """Apply a core to one token, x (B, 1, D), as its step description says. The state has no slots for crops."""
    memories, count = dict(state.tensors()), state.count
    vectors = [x]
    current: dict[int, Tensor] = {}  # the current token's vector in each buffer that has been written
    past: dict[tuple[int, int, int | None], tuple[Tensor, Tensor]] = {}  # projected once for all layers that share it

    def project_past(r: int, nearest: int, farthest: int | None) -> tuple[Tensor, Tensor]:
        if (r, nearest, farthest) not in past:
            buffer, (_, vector) = d.buffers[r], d.memory_index(r)
            memory = memories[buffer.memory]
            memory = memory if memory.dim() == 3 else memory[:, :, vector]
            slots = memory.shape[1]
            if farthest is not None:
                memory = memory[:, slots - farthest : slots - nearest + 1]
            past[r, nearest, farthest] = core.layers[buffer.layer].keys_values(memory)
        return past[r, nearest, farthest]

    def slots_of(application: Application) -> Slots:
        keys, values, distances, visible = [], [], [], []
        for read in application.reads:
            nearest, farthest = read.bounds(d.chunk)
            nearest = max(nearest, 1)
            if farthest is None or farthest >= nearest:
                part_keys, part_values = project_past(read.buffer, nearest, farthest)
                n = part_keys.shape[2]
                distance = torch.arange(n - 1, -1, -1, device=x.device) + nearest
                keys.append(part_keys)
                values.append(part_values)
                distances.append(distance)
                visible.append(read.visible(distance, count[:, None], d.chunk))
            if read.first == 0:
                part_keys, part_values = core.layers[d.buffers[read.buffer].layer].keys_values(current[read.buffer])
                keys.append(part_keys)
                values.append(part_values)
                distances.append(torch.zeros(1, dtype=torch.int64, device=x.device))
                visible.append(torch.ones_like(count, dtype=torch.bool)[:, None])
        return Slots(keys, values, torch.cat(distances)[None], torch.cat(visible, 1)[:, None])

    for depth, application in enumerate(d.applications):
        if application.write is not None:
            current[application.write] = vectors[-1]
        layer, source = core.layers[application.layer], sources[application.layer] if d.cross else None
        vectors.append(core.apply_layer(layer, depth, vectors[-1], slots_of(application), source, None, 0, 1))
    y = vectors[-1]
    if d.mix is not None:
        vectors.extend(torch.einsum("gl,lbtd->gbtd", d.mix, torch.stack(vectors)).unbind(0))
    count = count + 1
    after = {"count": count}
    for memory in d.memories:
        old, new = memories[memory.path], torch.stack([vectors[vector] for vector in memory.vectors], 2)
        new = new if old.dim() == 4 else new[:, :, 0]
        unlimited = any(buffer.memory == memory.path and d.farthest(r) is None for r, buffer in enumerate(d.buffers))
        after[memory.path] = torch.cat([old, new], 1) if unlimited else slide(old, new, count, None)
    return y, state._with_tensors(after.get(path, tensor) for path, tensor in memories.items())


def trace(step: CoreStep) -> torch.export.ExportedProgram:
    """Trace the step. The batch size, the number of growing slots and the other sizes of `dynamic` are dynamic."""
    examples = step.arguments(TRACED_BATCH) | step.inputs(TRACED_BATCH, TRACED_SLOTS)
    dimensions = {name: step.dynamic(name) for name in examples}
    names = {dimension for axes in dimensions.values() for dimension in axes.values()}
    dims = {name: torch.export.Dim(name, min=1) for name in sorted(names)}
    sizes = {name: {axis: dims[dimension] for axis, dimension in axes.items()} for name, axes in dimensions.items()}
    forward = inspect.signature(step.forward)
    bound = forward.bind(*sizes.values())
    with torch.no_grad():
        return torch.export.export(step, tuple(examples.values()), dynamic_shapes=bound.arguments)


def export_torch(model: LanguageModel, path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """Write one decoding step as a file of `torch.export`. Return the names of its inputs and outputs."""
    return write_program(StepModule(model), path)


def write_program(step: CoreStep, path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """Write a step as a file of `torch.export`. Return the names of its inputs and outputs, which the file contains."""
    names = names_of(step)
    with exporter_silenced():
        program = trace(step)
        write_output(path, GRAPH, lambda temporary: save_program(program, names, temporary))
    return names


def save_program(program: torch.export.ExportedProgram, names: dict[str, list[str]], path: Path) -> None:
    # torch.export.save requires the suffix .pt2 of a path, and hides errors such as a full disk of a file.
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={VERSION_FILE: __version__, NAMES_FILE: json.dumps(names)})
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
    """Write one decoding step as an ONNX file. Return the names of its inputs and outputs.

    `vocabulary`, that of a text or the names of tokens and labels, is written to the file's metadata."""
    check_onnx()
    return write_onnx(StepModule(model, vocabulary), path)


def names_of(step: CoreStep) -> dict[str, list[str]]:
    """Return the names of the inputs and outputs of a step, in order."""
    states = [f"{name}N" for name in step.names]
    return {"inputs": [*step.arguments(1), *step.names], "outputs": [*step.output_names(), *states]}


def check_onnx() -> None:
    """Raise an error if the packages that write ONNX files are missing."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingPackage("ONNX is not installed", "onnx>=1.17", "onnxscript>=0.5", "onnxruntime>=1.20") from None


def write_onnx(step: CoreStep, path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """Write a step as an ONNX file. Return the names of its inputs and outputs."""
    import onnx

    names = names_of(step)
    with exporter_silenced():
        exported = torch.onnx.export(
            trace(step), dynamo=True, input_names=names["inputs"], output_names=names["outputs"], verbose=False
        )
    assert exported is not None
    graph = exported.model_proto
    rename_dimensions(graph, step)
    onnx.helper.set_model_props(graph, step.metadata())
    onnx.checker.check_model(graph)
    graph.producer_name, graph.producer_version = "stairwell", __version__
    write_output(path, ONNX, lambda temporary: temporary.write_bytes(graph.SerializeToString()))
    return names


def rename_dimensions(graph: Any, step: CoreStep) -> None:
    """Give the dynamic dimensions their names."""
    inputs = {value.name: value.type.tensor_type.shape.dim for value in graph.graph.input}
    names = {inputs[given][axis].dim_param: name for given in inputs for axis, name in step.dynamic(given).items()}
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
