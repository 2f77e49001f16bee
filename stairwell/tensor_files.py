"""Tensors with text beside them in one safetensors file, and a hash of everything: a changed bit is found.

The hash finds damage, not forgery: whoever writes a file can hash it. So what is loaded is still checked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stairwell.errors import UserError

AnyPath = str | os.PathLike[str]


def hash_tensors(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return a hash of all names, types, shapes and elements, and of a text."""
    digest = hashlib.blake2b(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return digest.hexdigest()


def write_hashed(path: Path, tensors: Mapping[str, Tensor], text: Mapping[str, str]) -> None:
    """Write tensors and named texts, of which `format` names the format and its version: `stairwell.state.3`."""
    content = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(content, path, metadata={**text, "hash": hash_tensors(content, _joined(text))})


def read_hashed(path: AnyPath, format: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and texts that `write_hashed` wrote in this format, on the CPU."""
    where, kind = os.fspath(path), format.split(".")[1]
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{where} is not a regular file but a folder, a device or a pipe; name a saved {kind}")
    try:
        with safe_open(path, framework="pt") as file:
            text = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{where} is not a readable {kind}: {error}") from error
    found = text.get("format", "")
    if found != format:
        if found.rpartition(".")[0] == format.rpartition(".")[0]:
            raise UserError(
                f"{where} was written by another version of stairwell ({found}, this one reads {format}); make it "
                "again with this version"
            )
        other = f"its format is {found}" if found else "it has no format of stairwell's"
        raise UserError(f"{where} is not a saved {kind} of stairwell; {other}")
    if text.pop("hash", "") != hash_tensors(tensors, _joined(text)):
        raise UserError(f"{where} is damaged: its contents do not match their hash; use a good copy or make it again")
    return tensors, text


def _joined(text: Mapping[str, str]) -> str:
    return json.dumps(dict(text), sort_keys=True)
