"""What the decoding sessions of a model share: its step description and its packed parameters.

`cached_program` prepares it once per model, and again after the parameters have changed or a module was replaced.
Letters: B streams, D width, K head width, P distances, V vocabulary size.
"""

from __future__ import annotations

import operator
import threading
import weakref
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from stairwell.cores import step_of
from stairwell.cores.core import TransformerCore
from stairwell.cores.step import StepDescription
from stairwell.decode.native import HeadMatrix, NativeProgram, Output
from stairwell.decode.weights import cache_of, weights_of
from stairwell.devices import on_accelerator
from stairwell.fast import native
from stairwell.fast.linear import PackedLinear, suits_onednn
from stairwell.layers import Layer, ResidualLayer, Sublayer
from stairwell.models.embedding import Head

ELEMENTS_COMPARED = 4  # per parameter, before a step
VERSION, ADDRESS = operator.attrgetter("_version"), Tensor.data_ptr


class ParameterVersions:
    """Detects changes of a module's parameters with a few comparisons.

    PyTorch increments the version of a parameter at every in-place change, except through `.data` (`p.data.mul_(2)`).
    On the CPU these changes are detected by comparing a few elements of each parameter: nearly every change of a whole
    parameter affects them."""

    def __init__(self, module: nn.Module) -> None:
        owners = [
            (owner._parameters, name, parameter)
            for owner in module.modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None
        ]
        self.siblings = [parameters for parameters, _, _ in owners]
        self.names = [name for _, name, _ in owners]
        self.parameters = [parameter for _, _, parameter in owners]
        # A tensor created in inference mode has no version.
        self.versioned = [parameter for parameter in self.parameters if not parameter.is_inference()]
        self.versions, self.addresses = list(map(VERSION, self.versioned)), list(map(ADDRESS, self.parameters))
        on_cpu = (p.detach() for p in self.parameters if not on_accelerator(p) and p.is_contiguous())
        self.elements = native.ElementSnapshot([some_elements(parameter) for parameter in on_cpu])

    def changed(self) -> bool:
        # Functions written in C, because a step may take less time than a loop in Python.
        return (
            not all(map(operator.is_, map(operator.getitem, self.siblings, self.names), self.parameters))
            or list(map(VERSION, self.versioned)) != self.versions
            or list(map(ADDRESS, self.parameters)) != self.addresses
            or self.elements.changed()
        )


def some_elements(parameter: Tensor) -> np.ndarray:
    """Return a view of a few elements of a contiguous tensor, from the first to the last."""
    flat = parameter.view(-1)
    if flat.dtype == torch.bfloat16:  # not supported by numpy
        flat = flat.view(torch.int16)
    return flat[:: max(1, (len(flat) - 1) // (ELEMENTS_COMPARED - 1))].numpy()


class LayerStep(ResidualLayer):
    """A layer for one token per stream. Norms are plain functions, because with one stream the overhead of calling a
    module is as large as its computation."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.pre = layer, layer.pre
        self.attention_norm = norm_function(layer.attention_norm)
        self.feed_forward_norm = norm_function(layer.feed_forward_norm)
        if hasattr(layer, "cross"):
            self.cross_norm = norm_function(layer.cross_norm)

    # Built on first use, because native code does not need them: it reads the parameters themselves.
    @cached_property
    def query(self) -> PackedLinear:
        attention = self.layer.attention
        return PackedLinear(attention.query.weight * attention.K**-0.5)  # includes the scale of the scores

    @cached_property
    def key_value(self) -> PackedLinear:
        attention = self.layer.attention
        return PackedLinear(torch.cat([attention.key.weight, attention.value.weight]))

    @cached_property
    def out(self) -> PackedLinear:
        return PackedLinear(self.layer.attention.out.weight)

    @cached_property
    def inner(self) -> PackedLinear:
        linear = self.layer.feed_forward.inner
        return PackedLinear(linear.weight, linear.bias)

    @cached_property
    def outer(self) -> PackedLinear:
        linear = self.layer.feed_forward.out
        return PackedLinear(linear.weight, linear.bias)

    def apply(self, x: Tensor, attend: Sublayer, attend_source: Sublayer | None) -> Tensor:
        """x (B, D) -> (B, D); `attend` is attention without its output projection, (B, D) -> (B, H * K)"""
        return self.apply_sublayers(x, lambda normed: self.out(attend(normed)), attend_source, self.feed_forward)

    def feed_forward(self, normed: Tensor) -> Tensor:
        return self.outer(self.inner(normed, relu=True))

    def keys_values(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return the key and the value (B, H * K) of a vector (B, D)."""
        keys, values = self.key_value(self.normed(vector)).chunk(2, 1)
        return keys, values


def norm_function(norm: nn.LayerNorm) -> Sublayer:
    """Return a norm as a plain function."""
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


class Program:
    """The step description and the packed parameters of a model, shared by its decoding sessions."""

    def __init__(self, model: Any) -> None:
        self.versions = ParameterVersions(model)
        self.modules, self.weights = submodules(model), weights_of(model)
        self.cache = cache_of(model)
        # Keep no reference to the model: this object is a value of `_programs`, so the model would never be freed.
        self.norm: nn.Module = model.norm
        self.head_module: nn.Module | None = getattr(model, "head", None)
        description = step_of(model.core)
        # A ring requires a bounded buffer. That of Global Cached Staircase is unbounded.
        self.description = description if description is not None and description.is_bounded else None
        self.native: NativeProgram | None = None
        if self.description is not None:
            self._prepare(model.core, self.description)

    def _prepare(self, core: TransformerCore[Any, Any], description: StepDescription) -> None:
        self.layers = [LayerStep(layer) for layer in core.layers]
        self.nearest_first = core.position.table(description.distances).detach()  # (P, K)
        self.distance = torch.arange(description.distances, device=self.nearest_first.device) + description.nearest
        if native.supports(self.nearest_first) and not torch.compiler.is_compiling():
            self.native = NativeProgram(description, [*core.layers], self.nearest_first, self._output(), self.weights)

    def _output(self) -> Output:
        head = self.head_module
        matrix = HeadMatrix(head.weight.detach(), head.bias) if type(head) is Head and not hooked(head) else None
        norm = self.norm if type(self.norm) is nn.LayerNorm and not hooked(self.norm) else None
        # Native code can compute the logits only if it computes the final norm too, or there is none.
        return Output(norm, matrix if norm is not None or type(self.norm) is nn.Identity else None)

    def normed(self, y: Tensor) -> Tensor:
        """Return the core's output (..., D) after the final norm."""
        return cast(Tensor, self.norm(y))

    @cached_property
    def head(self) -> Sublayer:
        """The model's head as a function (B, D) -> (B, V) that is fast for few streams."""
        head = self.head_module
        if not isinstance(head, Head):
            return cast(Sublayer, head)
        packed = PackedLinear(head.weight, head.bias)
        return lambda x: packed(x) if suits_onednn(x, packed.weight) else head(x)

    def is_valid(self, model: Any) -> bool:
        """Return whether the model still has these modules and parameters."""
        modules = submodules(model)
        return (
            self.weights == weights_of(model)
            and self.cache == cache_of(model)
            and len(modules) == len(self.modules)
            and all(new is old for new, old in zip(modules, self.modules))
            and (self.description is None or not model.core.changed_module())
            and not self.versions.changed()
        )


def submodules(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if module is not model]


def hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


_programs: weakref.WeakKeyDictionary[nn.Module, Program] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def cached_program(model: Any) -> Program:
    """Return the cached program of a model; rebuild it if its parameters or modules have changed."""
    with _lock:
        program = _programs.get(model)
        if program is None or not program.is_valid(model):
            program = _programs[model] = Program(model)
        return program
