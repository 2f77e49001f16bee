"""The limits of a server, and the error that a request gets when it breaks one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stairwell.errors import UserError


class RequestError(Exception):
    """A request that is not answered: an HTTP status, and a message that says what is wrong and what to do."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    prompt_tokens: int = 16_384
    """Tokens per prompt."""
    completion_tokens: int = 4_096
    """Generated tokens per sequence."""
    sequences: int = 32
    """Sequences per request: the number of prompts times `n` or `best_of`."""
    output: int = 1 << 18
    """Output size of one request; see `CompletionRequest.output_size`."""
    total_output: int = 1 << 19
    """Output size of all requests in progress."""
    seconds: float = 300.0
    """Seconds per request."""
    body_bytes: int = 1_000_000
    """Bytes of a JSON body."""
    clients: int = 256
    """Requests served at once."""
    states: int = 256
    """Stored states."""
    total_state_bytes: int = 1_000_000_000
    """Bytes of all stored states."""
    state_seconds: float = 3_600.0
    """Idle seconds after which a stored state is evicted."""
    state_file_bytes: int = 64_000_000
    """Bytes of a state file to restore."""

    def __post_init__(self) -> None:
        for name in ("seconds", "state_seconds"):
            # JSON has no infinity, and responses contain these numbers.
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} must be a finite number of seconds, not {getattr(self, name)}")
