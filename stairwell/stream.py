"""A stream for other programs: feed it tokens, read what comes next.

    stream = Stream.open("runs/lm-feedback")                  or Stream(model, vocabulary)
    stream.feed("Once upon a ")                               text, bytes, one token or many; ["up", "down"]: names
    stream.probabilities()                                    (V,) of the next token, or of the current label
    token = stream.sample(temperature=0.8)                    sample a token, without feeding it
    fork = stream.fork()                                      an independent stream with the same past
    stream.crop(5)                                            remove the last five tokens
    stream.save("a.stream"); Stream.load("a.stream", model)   resumes bit for bit

A token costs the same however many came before. `StreamBatch` reads many streams in one batch.

Exactness: keys and values in a session's buffers were projected token by token, so a session created from a state
agrees with the original only up to rounding. A file therefore holds the session's keys and values besides the state.
Letters: T tokens, V output vocabulary size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from stairwell import text
from stairwell.decode import Sampling, Session
from stairwell.decode.sampling import REPETITION_WINDOW, as_integer
from stairwell.decode.stepper import check_parameters
from stairwell.errors import UserError
from stairwell.models import LanguageModel
from stairwell.outputs import OutputType, has_format, write_output
from stairwell.runs.load import load as load_run
from stairwell.state import State
from stairwell.tasks import Task
from stairwell.tasks.file_task import vocabularies
from stairwell.tasks.generated import GeneratedTask
from stairwell.tasks.labeled import LabeledVocabulary
from stairwell.tensor_files import hash_tensors, read_hashed, write_hashed

FORMAT = "stairwell.stream.3"
STREAM = OutputType("a saved stream", has_format("stairwell.stream"))
MAX_RECENT = 1 << 20  # tokens in a file
MAX_TOKENS_PER_CALL = 1024  # of the model; a longer text is fed in several calls

Tokens = str | bytes | int | Iterable[int] | Sequence[str] | np.ndarray | Tensor


class Stream:
    """One stream. `max_crop` is the largest number of tokens that `crop` can remove."""

    def __init__(self, model: LanguageModel, vocabulary: text.Vocabulary | None = None, *, max_crop: int = 0) -> None:
        check_usable(model)
        max_crop = as_integer(max_crop, "max_crop must be an integer number of tokens")
        if max_crop < 0:
            raise UserError(f"max_crop must be 0 or more tokens, not {max_crop}")
        self._init(model, vocabulary, max_crop)
        # `crop` reads the last remaining token again, so it removes one more from the state.
        self.session = Session(model, model.init_state(1, max_crop=max_crop + 1 if max_crop else 0))

    def _init(self, model: LanguageModel, vocabulary: text.Vocabulary | None, max_crop: int) -> None:
        if vocabulary is not None and vocabulary.size != model.config.inputs:
            raise UserError(
                f"the vocabulary has {vocabulary.size} tokens, but the model reads {model.config.inputs}; use the "
                "vocabulary that the model was trained with"
            )
        self.model, self.vocabulary, self.max_crop = model, vocabulary, max_crop
        self.logits: Tensor | None = None  # (V,), after the last token; None before the first token
        self.recent: list[int] = []  # the last tokens

    @classmethod
    def open(cls, run: str | os.PathLike[str], device: str = "auto", max_crop: int = 0) -> Self:
        """Return a new stream of a run's trained model, with its vocabulary: of text, or the names of the tokens and
        labels."""
        model, task = load_run(run, device)
        try:
            return cls(model, vocabulary_of(task), max_crop=max_crop)
        except UserError as error:
            raise UserError(f"{os.fspath(run)}: {error}") from None

    @classmethod
    def from_state(
        cls,
        model: LanguageModel,
        vocabulary: text.Vocabulary | None,
        state: State,
        logits: Tensor | None,
        recent: Iterable[int],
    ) -> Self:
        """Return the stream with a given state, the logits after its last token and its last tokens."""
        stream = cls.__new__(cls)
        stream._init(model, vocabulary, max(int(state.max_crop) - 1, 0))
        stream.logits, stream.recent = logits, list(recent)
        stream.session = Session(model, state)
        return stream

    def feed(self, tokens: Tokens) -> None:
        """Read tokens, or text in the model's vocabulary. Empty input is allowed."""
        for _ in self._read(tokens):
            pass

    def log_probs_each(self, tokens: Tokens) -> Tensor:
        """Read tokens; return the log-probabilities after each, (T, V)."""
        parts = [logits.log_softmax(-1) for logits in self._read(tokens)]
        return torch.cat(parts) if parts else self._parameter.new_zeros(0, self.model.config.V)

    def token_losses(self, tokens: Tokens) -> Tensor:
        """Read tokens; return the loss (negative log-likelihood) of each in nats, (T,). The first token of a stream is
        not predicted; its loss is 0."""
        config = self.model.config
        if config.inputs != config.V or hasattr(self.vocabulary, "labels"):
            raise UserError(
                f"this model predicts {config.V} labels, not its {config.inputs} input tokens, so tokens have no loss; "
                "use log_probs_each for the labels"
            )
        before, ids = self.logits, self.encode(tokens)
        parts = [] if before is None else [before.log_softmax(-1)[None]]
        after = self.log_probs_each(ids)
        # (T, V), or (T - 1, V) if the stream is new.
        predictions = torch.cat([*parts, after[:-1]] if len(ids) else [after])
        losses = predictions.gather(1, ids[len(ids) - len(predictions) :, None])[:, 0].neg()
        return torch.cat([losses.new_zeros(len(ids) - len(losses)), losses])

    @property
    def count(self) -> int:
        """Number of tokens read since the stream's start."""
        return int(self.session.count)

    @property
    def croppable(self) -> int:
        """Number of tokens that `crop` can remove now: at most `max_crop` and all tokens read. Cropped tokens no longer
        count; reading tokens increases it again."""
        # If a token remains, `crop` reads the last one again, so the state must be able to remove it too.
        of_state = int(self.session.croppable)
        return min(of_state if of_state == self.count else max(of_state - 1, 0), self.max_crop)

    def probabilities(self) -> Tensor:
        """Return the probabilities (V,) of the next token, or of the current label if the model predicts labels."""
        return self.log_probabilities().exp()

    def log_probabilities(self) -> Tensor:
        return self.next_logits().log_softmax(-1)

    def next_logits(self) -> Tensor:
        """Return the logits (V,) after the last token."""
        if self.logits is None:
            raise UserError("the stream has read nothing yet, so there is no prediction; feed it a token")
        return self.logits.clone()  # the caller may change them, as in `logits[forbidden] = -inf`

    def sample(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> int:
        """Sample the next token; temperature 0 is greedy. The stream does not read it: feed it to continue."""
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        return int(sampling.sample(self.next_logits()[None], generator))

    def fork(self) -> Self:
        """Return an independent stream with the same past."""
        return self.from_state(self.model, self.vocabulary, self.state(), self.logits, self.recent)

    def crop(self, tokens: int) -> None:
        """Remove the last tokens, at most `croppable`, exactly as if they had never been read. Consecutive crops share
        the limit `max_crop`."""
        tokens = as_integer(tokens, "crop takes an integer number of tokens")
        if tokens < 0:
            raise UserError(f"crop takes 0 or more tokens, not {tokens}")
        if tokens == 0:
            return
        if tokens > self.croppable:
            raise UserError(f"cannot crop {counted(tokens)}: {self._crop_limit(tokens)}")
        remaining, remaining_recent = self.count - tokens, self.recent[:-tokens]
        self.recent = remaining_recent[:-1]
        self.session = Session(self.model, self.state().crop(tokens + 1 if remaining else tokens))
        self.logits = None
        if remaining:
            self._step(remaining_recent[-1])

    def _crop_limit(self, tokens: int) -> str:
        """Return why so many tokens cannot be cropped."""
        if not self.count:
            return "the stream has read nothing"
        if tokens > self.max_crop:
            return (
                f"the stream has read {self.count:,} and was created with max_crop {self.max_crop}; create it with "
                f"max_crop={tokens}"
            )
        if tokens > self.count:
            return f"the stream has read only {self.count:,}"
        return (
            f"{counted(self.croppable)} can be removed now, because consecutive crops share max_crop "
            f"{self.max_crop}; feed tokens first, or create the stream with a larger max_crop"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a stream cannot be copied or pickled with its model; use fork() or save()")

    def state(self) -> State:
        """Return the model's state, of batch size 1."""
        return self.session.state()

    def save(self, path: str | os.PathLike[str], note: Mapping[str, Any] | None = None, **tensors: Tensor) -> None:
        """Write the stream atomically to a safetensors file with a hash of its contents, together with `note` (JSON)
        and additional tensors."""
        if self.session.is_outdated:
            self.session = Session(self.model, self.state())
        state = self.state()
        content = {f"state.{name}": tensor for name, tensor in state.tensors()}
        content |= {f"session.{name}": tensor for name, tensor in self.session.projections().items()}
        content |= {"recent": torch.tensor(self.recent, dtype=torch.int64)}
        if self.logits is not None:
            content["logits"] = self.logits.to(self._parameter.dtype)
        content |= {f"with.{name}": tensor for name, tensor in tensors.items()}
        header = {"spec": state.spec(), "max_crop": self.max_crop, "model": parameter_hash(self.model)}
        metadata = {"format": FORMAT, "stream": json.dumps(header), "note": json.dumps(dict(note or {}))}
        write_output(path, STREAM, lambda temporary: write_hashed(temporary, content, metadata))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], model: LanguageModel, vocabulary: text.Vocabulary | None = None
    ) -> Self:
        """Return the stream that `save` wrote, with the same model."""
        return cls.load_with(path, model, vocabulary)[0]

    @classmethod
    def load_with(
        cls, path: str | os.PathLike[str], model: LanguageModel, vocabulary: text.Vocabulary | None = None
    ) -> tuple[Self, dict[str, Any], dict[str, Tensor]]:
        """Return the stream, and the note and the additional tensors that were saved with it."""
        tensors, header, note = read_file(path)
        where = os.fspath(path)
        if header["model"] != parameter_hash(model):
            raise UserError(f"{where} is a stream of a model with other parameters; load it with the model it is from")
        check_usable(model)
        check_contents(tensors, header, model, where)
        device = next(model.parameters()).device
        leaves = {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("state.")}
        state = State.from_tensors(leaves, header["spec"], where).to(device)
        check_loaded_state(state, tensors, header["max_crop"], model, where)
        stream = cls.from_state(model, vocabulary, state, None, ())
        projections = {name[8:]: tensor for name, tensor in tensors.items() if name.startswith("session.")}
        try:
            stream.session.restore_projections(projections)
        except ValueError as error:
            raise UserError(f"{where} is damaged: {error}") from None
        stream.recent = tensors["recent"].tolist()
        stream.logits = tensors["logits"].to(device) if "logits" in tensors else None
        return stream, note, {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("with.")}

    def encode(self, tokens: Tokens) -> Tensor:
        """Return tokens or text as token ids (T,) int64."""
        device = self._parameter.device
        if isinstance(tokens, list | tuple) and tokens and all(isinstance(token, str) for token in tokens):
            if not hasattr(self.vocabulary, "labels"):
                raise UserError("a list of names is for models of labeled data; give text as one string")
            tokens = " ".join(tokens)
        if isinstance(tokens, str | bytes):
            return torch.from_numpy(encode(self.vocabulary, tokens)).to(device)
        if isinstance(tokens, Mapping | Set):
            raise UserError(f"tokens must be a sequence of integers, or text, not a {type(tokens).__name__}")
        try:
            sequence = [tokens] if isinstance(tokens, int | np.integer) else tokens
            ids = torch.as_tensor(sequence if isinstance(sequence, np.ndarray | Tensor) else list(sequence))
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"tokens must be integers, or text, not {tokens!r}") from error
        if not ids.numel():
            return ids.new_zeros(0, dtype=torch.int64, device=device)
        if ids.dim() > 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise UserError(f"tokens must be a sequence of integers, not {ids.dtype} of shape {tuple(ids.shape)}")
        ids = ids.flatten().to(device, torch.int64)
        invalid = ((ids < 0) | (ids >= self.model.config.inputs)).nonzero()
        if len(invalid):
            i = int(invalid[0])
            vocabulary = f"the model's vocabulary is 0..{self.model.config.inputs - 1}"
            raise UserError(f"token {int(ids[i])} at position {i} is out of range: {vocabulary}")
        return ids

    @property
    def _parameter(self) -> Tensor:
        return next(self.model.parameters())

    @torch.no_grad()
    def _read(self, tokens: Tokens) -> Iterator[Tensor]:
        """Read tokens; yield the logits after each, (t, V), for one call of the model at a time."""
        ids = self.encode(tokens)
        if len(ids) == 1:
            self._step(int(ids))
            yield self.next_logits()[None]
            return
        for part in torch.split(ids, MAX_TOKENS_PER_CALL) if len(ids) else ():
            logits, state = self.model(part[None], self.state())
            self.logits = logits[0, -1].clone()
            self._add_recent(part.tolist())
            self.session = Session(self.model, state)
            yield logits[0]

    def _step(self, token: int) -> None:
        self.logits = self.session.step(torch.tensor([token], device=self._parameter.device))[0]
        self._add_recent([token])

    def _add_recent(self, tokens: list[int]) -> None:
        self.recent = last_tokens([*self.recent, *tokens], self.max_crop)


class StreamBatch:
    """Streams of one model that are read together. They are identified by integers and may be opened and closed at any
    time.

        batch = StreamBatch(model)
        a, b = batch.open(), batch.open()
        batch.feed({a: [1, 2], b: 3})
        batch.probabilities(a)
        stream = batch.close(b)                                   a Stream, to save or to open elsewhere

    One token for every stream is cheapest: a single step of the whole batch. Streams that a call leaves out do not
    change. Streams are independent of each other."""

    def __init__(self, model: LanguageModel, vocabulary: text.Vocabulary | None = None, *, max_crop: int = 0) -> None:
        self._empty = Stream(model, vocabulary, max_crop=max_crop)
        self.model = model
        self.session = Session(model, self._empty.state())
        self.session.select([])
        self.ids: list[int] = []  # of the streams, in the order of the session
        self._logits: dict[int, Tensor | None] = {}
        self._recent: dict[int, list[int]] = {}
        self._next_id = 0

    def __len__(self) -> int:
        return len(self.ids)

    def open(self, stream: Stream | None = None) -> int:
        """Add a new stream, or an existing one, and return its id."""
        stream = stream or self._empty
        if stream.model is not self.model or stream.max_crop != self._empty.max_crop:
            raise UserError("a stream can join only a batch with the same model and the same max_crop")
        return self._add(stream.state(), stream.logits, stream.recent)

    def close(self, stream_id: int) -> Stream:
        """Remove a stream from the batch and return it."""
        stream = self._stream(stream_id)
        self.session.select([i for i, other in enumerate(self.ids) if other != stream_id])
        self.ids.remove(stream_id)
        del self._logits[stream_id], self._recent[stream_id]
        return stream

    def fork(self, stream_id: int) -> int:
        """Add an independent stream with the same past and return its id."""
        return self._add(self.state(stream_id), self._logits[stream_id], self._recent[stream_id])

    def crop(self, stream_id: int, tokens: int) -> None:
        """Remove the last tokens of a stream, as `Stream.crop` does."""
        stream = self._stream(stream_id)
        stream.crop(tokens)
        self._replace([stream_id], stream.state())
        self._logits[stream_id], self._recent[stream_id] = stream.logits, stream.recent

    @torch.no_grad()
    def feed(self, tokens: Mapping[int, Tokens]) -> None:
        """Read tokens, any number per stream; streams that are left out do not change."""
        ids = {stream_id: self._empty.encode(each) for stream_id, each in tokens.items()}
        for stream_id in ids:
            self._index(stream_id)
        lengths = {stream_id: len(each) for stream_id, each in ids.items() if len(each)}
        if len(lengths) == len(self.ids) and set(lengths.values()) == {1}:
            logits = self.session.step(torch.cat([ids[stream_id] for stream_id in self.ids]))
            self._logits.update(zip(self.ids, logits))
        else:
            for length in sorted(set(lengths.values())):
                self._read_together([stream_id for stream_id in lengths if lengths[stream_id] == length], ids)
        for stream_id in lengths:
            recent = [*self._recent[stream_id], *ids[stream_id].tolist()]
            self._recent[stream_id] = last_tokens(recent, self._empty.max_crop)

    def probabilities(self, stream_id: int) -> Tensor:
        """Return the probabilities (V,) of a stream's next token."""
        return self.log_probabilities(stream_id).exp()

    def log_probabilities(self, stream_id: int) -> Tensor:
        self._index(stream_id)
        logits = self._logits[stream_id]
        if logits is None:
            raise UserError(
                f"stream {stream_id} has read nothing yet, so there is no prediction; feed it a token first"
            )
        return logits.log_softmax(-1)

    def state(self, stream_id: int) -> State:
        return self._state([self._index(stream_id)])

    def _read_together(self, stream_ids: list[int], ids: Mapping[int, Tensor]) -> None:
        """Read the tokens of streams that have equally many."""
        state, logits = self._state([self._index(stream_id) for stream_id in stream_ids]), None
        for part in torch.split(torch.stack([ids[stream_id] for stream_id in stream_ids]), MAX_TOKENS_PER_CALL, 1):
            x, state = self.model.hidden(part, state)
            logits = self.model.head(x[:, -1])
        self._replace(stream_ids, state)
        self._logits.update(zip(stream_ids, logits if logits is not None else ()))

    def _state(self, index: list[int]) -> State:
        return self.session.state().select(index)

    def _replace(self, stream_ids: list[int], state: State) -> None:
        """Replace the states of streams, which move to the end of the batch."""
        self.session.select([i for i, stream_id in enumerate(self.ids) if stream_id not in stream_ids])
        self.session.join(state)
        self.ids = [*(stream_id for stream_id in self.ids if stream_id not in stream_ids), *stream_ids]

    def _add(self, state: State, logits: Tensor | None, recent: list[int]) -> int:
        stream_id, self._next_id = self._next_id, self._next_id + 1
        self.session.join(state)
        self.ids.append(stream_id)
        self._logits[stream_id], self._recent[stream_id] = logits, list(recent)
        return stream_id

    def _stream(self, stream_id: int) -> Stream:
        logits, recent = self._logits.get(stream_id), self._recent.get(stream_id, [])
        return Stream.from_state(self.model, self._empty.vocabulary, self.state(stream_id), logits, recent)

    def _index(self, stream_id: int) -> int:
        if stream_id not in self.ids:
            raise UserError(f"there is no stream {stream_id} in this batch; its streams are {self.ids}")
        return self.ids.index(stream_id)


def last_tokens(tokens: list[int], max_crop: int) -> list[int]:
    """Return the tokens that a repetition penalty or `crop` may need."""
    return tokens[-max(REPETITION_WINDOW, max_crop + 1) :]


def counted(tokens: int) -> str:
    return f"{tokens:,} token{'' if tokens == 1 else 's'}"


def vocabulary_of(task: Task) -> text.Vocabulary | None:
    """Return the vocabulary of the streams of a task: of text, or the names of its tokens and labels."""
    if isinstance(task, GeneratedTask):
        tokens, labels = task.names()
        return LabeledVocabulary(tuple(tokens), tuple(labels))
    by_name = vocabularies(task)
    return by_name.get("text") or by_name.get("tokens")


def encode(vocabulary: text.Vocabulary | None, given: str | bytes) -> np.ndarray:
    """Return text as token ids. Only a vocabulary of bytes reads bytes that are not UTF-8, which arrive from a command
    line as lone surrogates."""
    if vocabulary is None:
        raise UserError("this model reads tokens, not text: it has no vocabulary")
    try:
        return vocabulary.encode(given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given)
    except UnicodeError as error:
        position = getattr(error, "start", 0)
        raise UserError(
            f"the text is not valid UTF-8 at byte {position}, for instance cut inside a character; only a model of "
            "bytes reads that"
        ) from None


def check_usable(model: LanguageModel) -> None:
    """Raise an error if a model is in training mode or its parameters are not finite."""
    if not isinstance(model, LanguageModel):
        raise UserError(f"a stream requires a LanguageModel, not a {type(model).__name__}")
    if model.training:
        raise UserError("the model is in training mode; call model.eval() first")
    check_parameters(model)


def parameter_hash(model: LanguageModel) -> str:
    """Return a hash of all parameters."""
    return hash_tensors(dict(model.named_parameters()), "")


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    """Return the tensors, the header and the note of a stream's file."""
    where = os.fspath(path)
    tensors, metadata = read_hashed(path, FORMAT)
    try:
        header, note = json.loads(metadata["stream"]), json.loads(metadata["note"])
        if not {"spec", "max_crop", "model"} <= header.keys() or "recent" not in tensors:
            raise KeyError("parts are missing")
    except (KeyError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{where} is not a readable stream: {error}") from error
    return tensors, header, note


def check_contents(tensors: dict[str, Tensor], header: dict[str, Any], model: LanguageModel, where: str) -> None:
    """Check a stream's file, which may come from anywhere, except for the state."""
    recent = tensors["recent"]
    is_list = recent.dtype == torch.int64 and recent.dim() == 1 and len(recent) <= MAX_RECENT
    if not is_list or not ((recent >= 0) & (recent < model.config.inputs)).all():
        raise UserError(f"{where} is damaged: 'recent' is not a list of the model's tokens")
    logits, dtype = tensors.get("logits"), next(model.parameters()).dtype
    if logits is not None and (logits.dtype != dtype or logits.shape != (model.config.V,)):
        raise UserError(
            f"{where} is damaged: 'logits' is {logits.dtype} of shape {tuple(logits.shape)}; this model's is {dtype} "
            f"of shape ({model.config.V},)"
        )
    if logits is not None and not logits.isfinite().all():
        raise UserError(f"{where} is damaged: 'logits' contains NaN or infinity")
    if type(header["max_crop"]) is not int or header["max_crop"] < 0:
        raise UserError(f"{where} is damaged: its max_crop is {header['max_crop']!r}")


def check_loaded_state(
    state: State, tensors: dict[str, Tensor], max_crop: int, model: LanguageModel, where: str
) -> None:
    """Raise an error if a state cannot be that of a stream of this model with this max_crop."""
    try:
        model.core.check_state(state, 1)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} is damaged: {error}") from None
    if state.max_crop != (max_crop + 1 if max_crop else 0):
        raise UserError(f"{where} is damaged: its state does not have max_crop {max_crop}")
    count, croppable = int(state.count), int(state.croppable)
    if (count > 0) != ("logits" in tensors) or len(tensors["recent"]) < min(croppable, state.max_crop):
        raise UserError(f"{where} is damaged: its last tokens or its logits are missing")
