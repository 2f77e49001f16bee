"""Safetensors files with named texts and a hash of the whole content.

The hash detects damage, not forgery, so what is loaded still has to be checked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stairwell.errors import UserError
from stairwell.files import AnyPath, parse_json, write_atomically


def hash_tensors(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return a hash of all names, types, shapes and elements of tensors, and of a text."""
    digest = hashlib.blake2b(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return digest.hexdigest()


def write_hashed(path: Path, tensors: Mapping[str, Tensor], text: Mapping[str, str]) -> None:
    """Write tensors and named texts. The text `format` is the format and its version: `stairwell.state.3`."""
    content = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(content, path, metadata={**text, "hash": hash_tensors(content, _joined(text))})


def read_hashed(path: AnyPath, format: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors, on the CPU, and texts that `write_hashed` wrote in this format."""
    where, content = os.fspath(path), format.split(".")[1]
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{where} is not a regular file but a folder, a device or a pipe; name a saved {content}")
    try:
        with safe_open(path, framework="pt") as file:
            text = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{where} is not a readable {content}: {error}") from error
    saved_format = text.get("format", "")
    if saved_format != format:
        if saved_format.rpartition(".")[0] == format.rpartition(".")[0]:
            raise UserError(
                f"{where} was written by another version of stairwell ({saved_format}, this one reads {format}); make "
                "it again with this version"
            )
        reason = f"its format is {saved_format}" if saved_format else "it has no stairwell format"
        raise UserError(f"{where} is not a saved {content} of stairwell: {reason}; name another file")
    if text.pop("hash", "") != hash_tensors(tensors, _joined(text)):
        raise UserError(f"{where} is damaged: its contents do not match their hash; use a good copy or make it again")
    return tensors, text


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write tensors and metadata (JSON) atomically to a safetensors file, with a hash of both."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(metadata)
    # safetensors writes several keys in no fixed order, and equal contents should be equal files: use one key.
    header = {"stairwell": json.dumps({"note": text, "hash": hash_tensors(tensors, text)})}
    try:
        write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata=header))
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"{path} could not be written ({reason}); earlier files are intact") from None


def load_tensors(path: Path, required_key: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what `save_tensors` wrote. Models and checkpoints have different keys: metadata without `required_key` is
    rejected."""
    if path.exists() and not os.access(path, os.R_OK):
        raise UserError(f"{path} cannot be read: no permission")
    try:
        with safe_open(path, framework="pt") as file:
            header = parse_json((file.metadata() or {}).get("stairwell", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error})") from None
    if header.get("hash") != hash_tensors(tensors, header.get("note", "")):
        raise UserError(f"{path} is damaged (its contents do not match their hash)")
    metadata: dict[str, Any] = json.loads(header["note"])
    if required_key and required_key not in metadata:
        raise UserError(f"{path} is damaged (it is another type of file)")
    return tensors, metadata


def _joined(text: Mapping[str, str]) -> str:
    return json.dumps(dict(text), sort_keys=True)
