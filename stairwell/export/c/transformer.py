"""The step description of a transformer core as C: a straight sequence of calls, one per layer application.

Letters: A layer applications, C chunk.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from stairwell.cores.core import TransformerCore
from stairwell.cores.step import Read, StepDescription
from stairwell.export.c.parameters import Parameters, float_literal
from stairwell.export.c.source import Constant, CoreSource, StateField
from stairwell.layers import Layer


def transformer_source(core: TransformerCore[Any, Any], d: StepDescription, parameters: Parameters) -> CoreSource:
    """Return the C source of a core."""
    return TransformerSource(core, d, parameters).source()


class TransformerSource:
    def __init__(self, core: TransformerCore[Any, Any], d: StepDescription, parameters: Parameters) -> None:
        self.core, self.config, self.d, self.parameters = core, core.config, d, parameters
        self.keys = self.config.heads * self.config.K
        # How far a layer can attend: beyond a learned span all weights are 0.
        reach = [d.nearest + layer.span.max_span() - 1 if layer.span is not None else None for layer in core.layers]
        self.farthest: list[list[int]] = []  # per application and read
        self.slots = [1] * len(d.buffers)  # per buffer
        written_early = {application.write for application in d.applications}
        for application in d.applications:
            limits = [read.bounds(d.chunk)[1] for read in application.reads]
            assert None not in limits, "the step description is not bounded"
            limit = reach[application.layer]
            self.farthest.append([min(x for x in (farthest, limit) if x is not None) for farthest in limits])
            for read, farthest in zip(application.reads, self.farthest[-1]):
                # A buffer that is only written at the end of a step overwrites its farthest entry then.
                slots = farthest + (read.buffer in written_early)
                self.slots[read.buffer] = max(self.slots[read.buffer], slots)
        self.max_count = max([1, *(farthest for limits in self.farthest for farthest in limits)])

    def source(self) -> CoreSource:
        d, config = self.d, self.config
        self.mixes = [f"mix{g}" for g in range(d.mixes)]
        copied = {d.buffers[r].vector for r in d.final_writes}
        copied = {vector for vector in copied if vector <= len(d.applications)}
        self.copies = {vector: f"vector{vector}" for vector in sorted(copied)}
        layers = [self.layer(l, layer) for l, layer in enumerate(self.core.layers)]
        position = self.core.position.vectors
        has_positions = config.positions != "none"
        if has_positions:
            position = position[: min(d.distances, self.max_count - d.nearest + 1)]
            self.parameters.floats("position", position)
        spans = self.core.spans()
        return CoreSource(
            template="transformer",
            constants=[
                Constant("LAYERS", config.layers, "layers"),
                Constant("HEAD_WIDTH", config.K, "width of a head"),
                Constant("KEYS", self.keys, f"width of all {config.heads} heads"),
                Constant("INNER", config.F, "inner width of the feed-forward sublayer"),
                Constant("ENTRIES", self.max_entries(), "most entries that a layer attends to"),
                *([Constant("NEAREST", d.nearest, "nearest distance")] if has_positions or spans else []),
                *([Constant("POSITIONS", len(position), "position embeddings")] if has_positions else []),
                *([Constant("SPAN_RAMP", config.span_ramp, "tokens over which a span fades out")] if spans else []),
            ],
            fields=self.fields(),
            functions={"expf", "sqrtf"},
            context={
                "layers": layers,
                "pre_norm": config.norm == "pre",
                "positions": has_positions,
                "span": bool(spans),
                "score_scale": float_literal(config.K**-0.5),
                "chunk": d.chunk,
                "mixes": self.mixes,
                "copies": list(self.copies.values()),
                "max_ranges": max(len(application.reads) for application in d.applications),
                "statements": self.statements(),
            },
        )

    def max_entries(self) -> int:
        """Return the largest number of entries that any layer application attends to."""
        most = 1
        for application, limits in zip(self.d.applications, self.farthest):
            nearest = [read.bounds(self.d.chunk)[0] for read in application.reads]
            most = max(most, sum(max(0, far - near + 1) for near, far in zip(nearest, limits)))
        return most

    def layer(self, l: int, layer: Layer) -> dict[str, str]:
        """Add the parameters of a layer. Return the initializers of its fields."""
        add, attention, feed_forward = self.parameters, layer.attention, layer.feed_forward
        matrices: dict[str, Tensor] = {"query": attention.query.weight}
        if hasattr(attention, "key"):
            matrices |= {"key": attention.key.weight, "value": attention.value.weight}
        matrices |= {"out": attention.out.weight, "inner": feed_forward.inner.weight, "outer": feed_forward.out.weight}
        vectors: dict[str, Tensor] = {
            "attention_norm_weight": layer.attention_norm.weight,
            "attention_norm_bias": layer.attention_norm.bias,
            "feed_forward_norm_weight": layer.feed_forward_norm.weight,
            "feed_forward_norm_bias": layer.feed_forward_norm.bias,
            "inner_bias": feed_forward.inner.bias,
            "outer_bias": feed_forward.out.bias,
        }
        if layer.span is not None:
            vectors["span"] = layer.span.z
        return {
            **{field: add.matrix(f"layer{l}_{field}", values) for field, values in matrices.items()},
            **{field: add.floats(f"layer{l}_{field}", values) for field, values in vectors.items()},
        }

    def fields(self) -> list[StateField]:
        """Return the fields of the state."""
        fields = [StateField("count", "int", 0, f"tokens since the start, at most {self.max_count}")]
        if self.d.chunk > 1:
            fields.append(StateField("phase", "int", 0, "offset of the current token in its chunk"))
        for slots in sorted(set(self.slots)):
            fields.append(StateField(slot_name(slots), "int", 0, f"current slot of ring buffers with {slots} slots"))
        for r, slots in enumerate(self.slots):
            for what in ("keys", "values"):
                fields.append(StateField(f"{what}{r}", "float", slots * self.keys, f"ring buffer: {slots} {what}"))
        return fields

    def statements(self) -> list[str]:
        """Return the statements of a step."""
        d, lines = self.d, self.use_vector(0)
        for a, application in enumerate(d.applications):
            lines += ["", f"/* {self.title(a)} */"]
            if application.write is not None:
                lines.append(self.write(application.write, "x"))
            for i, (read, limit) in enumerate(zip(application.reads, self.farthest[a])):
                lines.append(f"ranges[{i}] = {self.range(read, limit)};")
            lines.append(f"apply_layer(&layers[{application.layer}], ranges, {len(application.reads)}, x);")
            lines += self.use_vector(a + 1)
        lines += ["", "/* What later tokens attend to, and the next token */"]
        for r in d.final_writes:
            vector = d.buffers[r].vector
            name = self.copies.get(vector) or self.mixes[vector - len(d.applications) - 1]
            lines.append(self.write(r, name))
        for slots in sorted(set(self.slots)):
            lines.append(f"state->{slot_name(slots)} = (state->{slot_name(slots)} + 1) % {slots};")
        if d.chunk > 1:
            lines.append(f"state->phase = (phase + 1) % {d.chunk};")
        return [*lines, f"state->count = smaller(count + 1, {self.max_count});"]

    def title(self, a: int) -> str:
        layer, layers = self.d.applications[a].layer, self.config.layers
        return f"Layer {layer}, pass {a // layers + 1}" if len(self.d.applications) > layers else f"Layer {layer}"

    def use_vector(self, vector: int) -> list[str]:
        """Return statements that keep a vector, now in x, for mixes and final writes."""
        lines = [f"copy(x, {self.copies[vector]});"] if vector in self.copies else []
        if self.d.mix is None:
            return lines
        shares = self.d.mix[:, vector].tolist()
        return lines + [
            f"add_share({float_literal(share)}, x, {mix});" for mix, share in zip(self.mixes, shares) if share
        ]

    def write(self, buffer: int, vector: str) -> str:
        """Return the statement that writes the key and value of a vector to the current slot."""
        offset = f"state->{slot_name(self.slots[buffer])} * KEYS"
        layer = f"&layers[{self.d.buffers[buffer].layer}]"
        return f"project({layer}, {vector}, state->keys{buffer} + {offset}, state->values{buffer} + {offset});"

    def range(self, read: Read, limit: int) -> str:
        """Return the range of entries that a read attends to: the rule of `Read.distances`."""
        r, C = read.buffer, self.d.chunk
        nearest, farthest = str(read.first), str(limit)
        if read.chunks and C > 1:
            assert read.last is not None
            nearest = "0" if read.first == 0 else f"phase + {(read.first - 1) * C + 1}"
            chunks = f"phase + {read.last * C}" if read.last else "phase"
            # A phase of C - 1 reaches the farthest entry, unless a learned span cuts it off.
            cut = limit < read.bounds(C)[1]  # type: ignore[operator]
            farthest = f"smaller({chunks}, {limit})" if cut else chunks
        slots = self.slots[r]
        farthest = f"smaller({farthest}, count)" if farthest != "0" else "0"
        current = f"state->{slot_name(slots)}"
        return f"(struct range){{state->keys{r}, state->values{r}, {slots}, {current}, {nearest}, {farthest}}}"


def slot_name(slots: int) -> str:
    return f"slot_of_{slots}"
