"""A stream for other programs: feed it what happens, ask it what comes next.

    stream = Stream.open("runs/lm-feedback")                  or Stream(model, vocabulary)
    stream.feed("FirstOrderFunction upon a ")                               text, bytes, one token or many
    stream.probabilities()                                    (V,) of the next token, or of the label now
    token = stream.sample(temperature=0.8)                    choose it; feeding it is another matter
    twin = stream.fork()                                      goes its own way from here
    stream.crop(5)                                            the last five tokens were never read
    stream.save("a.stream"); Stream.load("a.stream", model)   goes on as if it had never stopped, bit for bit

A token costs the same however many came before. `StreamBatch` reads many streams that come and go in one batch.

Exactness: a decoding session sums in an order that depends on how it came to where it is, so a session made anew from a
state agrees to rounding only. A stream therefore makes its session anew every `ANCHOR` tokens anyway; a file holds the
state at the last such anchor and the tokens since, which are read again by the same steps.
Letters: T tokens, V output symbols.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from stairwell import text
from stairwell.cores import Core
from stairwell.decode import Session, sampler
from stairwell.errors import UserError
from stairwell.field_types import FieldType
from stairwell.models import LanguageModel
from stairwell.outputs import Kind, has_format, write_output
from stairwell.runs.launch import load as load_run
from stairwell.state import State, assemble
from stairwell.tensor_files import hash_tensors, read_hashed, write_hashed

FORMAT = "stairwell.stream.2"
STREAM = Kind("a saved stream", has_format("stairwell.stream"))
ANCHOR = 256  # tokens until a session is made anew, and so the most that are read again after loading
AT_ONCE = 1024  # tokens in one call of the model; a longer text is fed in several
RECENT = 64  # of the last tokens, kept for penalties on repetition and to crop

Tokens = str | bytes | int | Iterable[int] | np.ndarray | Tensor


class Stream:
    """One stream. `max_crop` is how many of the last tokens `crop` can take back."""

    def __init__(self, model: LanguageModel, vocabulary: text.Vocabulary | None = None, *, max_crop: int = 0) -> None:
        check_usable(model)
        max_crop = integer(max_crop, "max_crop is an integer number of tokens")
        if max_crop < 0:
            raise UserError(f"max_crop must be 0 or more tokens, not {max_crop}")
        self.model, self.vocabulary, self.max_crop = model, vocabulary, max_crop
        self.logits: Tensor | None = None  # (V,), of what follows; none before the first token
        self.recent: list[int] = []  # the last tokens
        # What follows a cropped stream is found by reading its last token again, so one more must be kept.
        self._settle(model.init_state(1, max_crop=max_crop + 1 if max_crop else 0))

    @classmethod
    def open(cls, run: str | os.PathLike[str], device: str = "auto", max_crop: int = 0) -> Self:
        """A fresh stream of a run folder's trained model, with its vocabulary if it reads text or named symbols."""
        model, task = load_run(run, device)
        known = task.vocabularies
        try:
            return cls(model, known.get("text") or known.get("symbols"), max_crop=max_crop)
        except UserError as error:
            raise UserError(f"{os.fspath(run)}: {error}") from None

    @classmethod
    def at(
        cls,
        model: LanguageModel,
        vocabulary: text.Vocabulary | None,
        state: State,
        logits: Tensor | None,
        recent: Iterable[int],
    ) -> Self:
        """The stream that stands at a state, with what the model says after it and the last tokens read."""
        stream = cls._bare(model, vocabulary, max(int(state.max_crop) - 1, 0))
        stream.logits, stream.recent = logits, list(recent)
        stream._settle(state)
        return stream

    def feed(self, tokens: Tokens) -> None:
        """Read tokens, or text in the model's vocabulary. Nothing to read is fine."""
        for _ in self._read(tokens):
            pass

    def follow(self, tokens: Tokens) -> Tensor:
        """Read tokens; the log-probabilities after each, (T, V)."""
        parts = [logits.log_softmax(-1) for logits in self._read(tokens)]
        return torch.cat(parts) if parts else self._parameter.new_zeros(0, self.model.config.V)

    def surprise(self, tokens: Tokens) -> Tensor:
        """Read tokens; how unlikely each was when it came, (T,) in nats: minus the log of its probability. The first of
        all, before which nothing was known, is 0."""
        config = self.model.config
        if config.inputs != config.V:
            raise UserError(
                f"this model predicts {config.V} labels, not its {config.inputs} input symbols, so no token surprises "
                "it; read what it thinks of them with follow"
            )
        before, ids = self.logits, self.encode(tokens)
        parts = [] if before is None else [before.log_softmax(-1)[None]]
        after = self.follow(ids)
        expected = torch.cat([*parts, after[:-1]] if len(ids) else [after])  # (T, V), one fewer for a fresh stream
        known = expected.gather(1, ids[len(ids) - len(expected) :, None])[:, 0].neg()
        return torch.cat([known.new_zeros(len(ids) - len(known)), known])

    @property
    def count(self) -> int:
        """Tokens read since the stream began."""
        return int(self.session.count)

    def probabilities(self) -> Tensor:
        """Of the next token, or of the label now where the model has labels of its own, (V,)."""
        return self.log_probabilities().exp()

    def log_probabilities(self) -> Tensor:
        return self._known().log_softmax(-1)

    def sample(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> int:
        """A token to come next, drawn from the distribution or from its likely part; 0 degrees take the likeliest. The
        stream does not read it: feed it to go on."""
        return int(sampler(temperature, top_k, top_p, generator)(self._known()[None]))

    def fork(self) -> Self:
        """Another stream with the same past; each goes its own way from here."""
        twin = self._bare(self.model, self.vocabulary, self.max_crop)
        twin.logits, twin.recent = self.logits, list(self.recent)
        twin._settle(self.state())
        return twin

    def crop(self, tokens: int) -> None:
        """Take the last tokens back, as if they had never been read; as many as `max_crop` of them, at any time."""
        tokens = integer(tokens, "crop takes an integer number of tokens")
        if tokens < 0:
            raise UserError(f"crop takes 0 or more tokens, not {tokens}")
        if tokens > min(self.max_crop, self.count):
            raise UserError(
                f"cannot take back {tokens} tokens: this stream has read {self.count} and was made with max_crop "
                f"{self.max_crop}; make it with max_crop={tokens}"
            )
        if tokens == 0:
            return
        kept = self.recent[:-tokens]
        left = self.count - tokens
        self.recent = kept[:-1]
        self._settle(self.state().crop(tokens + 1 if left else tokens))
        self.logits = None
        if left:
            self._step(kept[-1])

    def state(self) -> State:
        """What the model remembers, as a value of one row."""
        return self.session.state()

    def save(self, path: str | os.PathLike[str], note: Mapping[str, Any] | None = None, **tensors: Tensor) -> None:
        """Write the stream as a safetensors file with a hash of its contents, whole or not at all; `note` (JSON) and
        further tensors go along."""
        content = {f"state.{name}": tensor for name, tensor in self._anchor.tensors()}
        content |= {"since": torch.tensor(self._since, dtype=torch.int64)}
        content |= {"recent": torch.tensor(self.recent, dtype=torch.int64)}
        if self.logits is not None:
            content["logits"] = self.logits.to(self._parameter.dtype)
        content |= {f"with.{name}": tensor for name, tensor in tensors.items()}
        facts = {"form": self._anchor.form(), "max_crop": self.max_crop, "model": fingerprint(self.model)}
        text = {"format": FORMAT, "stream": json.dumps(facts), "note": json.dumps(dict(note or {}))}
        write_output(path, STREAM, lambda temporary: write_hashed(temporary, content, text))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], model: LanguageModel, vocabulary: text.Vocabulary | None = None
    ) -> Self:
        """The stream that `save` wrote, of the same model."""
        return cls.load_with(path, model, vocabulary)[0]

    @classmethod
    def load_with(
        cls, path: str | os.PathLike[str], model: LanguageModel, vocabulary: text.Vocabulary | None = None
    ) -> tuple[Self, dict[str, Any], dict[str, Tensor]]:
        """The stream, and the note and the tensors that were saved along."""
        tensors, facts, note = read_file(path)
        where = os.fspath(path)
        if facts["model"] != fingerprint(model):
            raise UserError(f"{where} is a stream of a model with other parameters; load it with the one that wrote it")
        check_usable(model)
        check_parts(tensors, facts, model, where)
        device = next(model.parameters()).device
        parts = {name: tensors.pop(name) for name in list(tensors) if name.startswith("state.")}
        state = State.from_tensors({name[6:]: part for name, part in parts.items()}, facts["form"], where).to(device)
        check_restored(state, tensors, facts["max_crop"], model, where)
        stream = cls._bare(model, vocabulary, facts["max_crop"])
        stream._settle(state)
        for token in tensors["since"].tolist():
            stream._step(token)
        stream.recent = tensors["recent"].tolist()
        stream.logits = tensors["logits"].to(device) if "logits" in tensors else None
        return stream, note, {name[5:]: part for name, part in tensors.items() if name.startswith("with.")}

    def encode(self, tokens: Tokens) -> Tensor:
        """Tokens (T,) int64 of what may be fed."""
        device = self._parameter.device
        if isinstance(tokens, str | bytes):
            return torch.from_numpy(encode(self.vocabulary, tokens)).to(device)
        if isinstance(tokens, Mapping | Set):
            raise UserError(f"tokens are a sequence of integers, or text; not a {type(tokens).__name__}")
        try:
            one = isinstance(tokens, int | np.integer)
            ids = torch.as_tensor([tokens] if one else tokens if _array(tokens) else list(tokens))  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"tokens are whole numbers, or text; not {tokens!r}") from error
        if not ids.numel():
            return ids.new_zeros(0, dtype=torch.int64, device=device)
        if ids.dim() > 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise UserError(f"tokens are whole numbers in a row, not {ids.dtype} of {tuple(ids.shape)}")
        ids = ids.flatten().to(device, torch.int64)
        wrong = ((ids < 0) | (ids >= self.model.config.inputs)).nonzero()
        if len(wrong):
            known = f"the model knows 0..{self.model.config.inputs - 1}"
            raise UserError(f"token {int(ids[int(wrong[0])])} at place {int(wrong[0])} is out of range: {known}")
        return ids

    @classmethod
    def _bare(cls, model: LanguageModel, vocabulary: text.Vocabulary | None, max_crop: int) -> Self:
        stream = cls.__new__(cls)
        stream.model, stream.vocabulary, stream.max_crop = model, vocabulary, max_crop
        stream.logits, stream.recent = None, []
        return stream

    @property
    def _parameter(self) -> Tensor:
        return next(self.model.parameters())

    def _known(self) -> Tensor:
        if self.logits is None:
            raise UserError("the stream has read nothing yet, so nothing is known of what follows: feed it a token")
        return self.logits

    def _settle(self, state: State) -> None:
        """A session made anew: from here on everything follows from `state` and the tokens since."""
        self.session = Session(self.model, state)
        self._anchor = state
        self._since: list[int] = []

    @torch.no_grad()
    def _read(self, tokens: Tokens) -> Iterator[Tensor]:
        """Read tokens; the logits after each, (t, V), a part at a time."""
        ids = self.encode(tokens)
        if len(ids) == 1:
            self._step(int(ids))
            yield self._known()[None]
            return
        for part in ids.split(AT_ONCE) if len(ids) else ():
            logits, state = self.model(part[None], self.state())
            self.logits = logits[0, -1].clone()
            self._remember(part.tolist())
            self._settle(state)
            yield logits[0]

    def _step(self, token: int) -> None:
        if len(self._since) == ANCHOR:
            self._settle(self.state())
        self.logits = self.session.step(torch.tensor([token], device=self._parameter.device))[0]
        self._since.append(token)
        self._remember([token])

    def _remember(self, tokens: list[int]) -> None:
        self.recent = [*self.recent, *tokens][-max(RECENT, self.max_crop + 1) :]


class StreamBatch:
    """Many streams of one model, read together; they are known by numbers and come and go at any time.

        batch = StreamBatch(model)
        a, b = batch.open(), batch.open()
        batch.feed({a: [1, 2], b: 3})
        batch.probabilities(a)
        kept = batch.close(b)                                     a Stream again, to save or to open elsewhere

    Cheapest is one token for every stream: a single step of all rows. Streams that are left out of a call stay where
    they are. Rows never touch each other."""

    def __init__(self, model: LanguageModel, vocabulary: text.Vocabulary | None = None, *, max_crop: int = 0) -> None:
        # What a stream knows of text and tokens, this batch knows from one that reads nothing.
        self._fresh = Stream(model, vocabulary, max_crop=max_crop)
        self.model = self._fresh.model
        self.session = Session(model, self._fresh.state())
        self.session.select([])
        self.names: list[int] = []  # in the order of the session's rows
        self._logits: dict[int, Tensor | None] = {}
        self._recent: dict[int, list[int]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self.names)

    def open(self, stream: Stream | None = None) -> int:
        """A new stream, or one that was alone until now, comes in; its number."""
        stream = stream or self._fresh
        if stream.model is not self.model or stream.max_crop != self._fresh.max_crop:
            raise UserError("a stream joins a batch of its own model and max_crop only")
        return self._come(stream.state(), stream.logits, stream.recent)

    def close(self, name: int) -> Stream:
        """A stream leaves, and goes on alone."""
        stream = self._alone(name)
        self.session.select([row for row, other in enumerate(self.names) if other != name])
        self.names.remove(name)
        del self._logits[name], self._recent[name]
        return stream

    def fork(self, name: int) -> int:
        """Another stream with the same past; its number."""
        return self._come(self._state([self._row(name)]), self._logits[name], self._recent[name])

    def crop(self, name: int, tokens: int) -> None:
        """Take the last tokens of a stream back, as `Stream.crop` does."""
        stream = self._alone(name)
        stream.crop(tokens)
        self._replace([name], stream.state())
        self._logits[name], self._recent[name] = stream.logits, stream.recent

    @torch.no_grad()
    def feed(self, tokens: Mapping[int, Tokens]) -> None:
        """Let streams read tokens, each its own, as many as there are; the others stay where they are."""
        ids = {name: self._fresh.encode(each) for name, each in tokens.items()}
        for name in ids:
            self._row(name)
        lengths = {name: len(each) for name, each in ids.items() if len(each)}
        if len(lengths) == len(self.names) and set(lengths.values()) == {1}:
            logits = self.session.step(torch.cat([ids[name] for name in self.names]))
            self._logits.update(zip(self.names, logits))
        else:
            for length in sorted(set(lengths.values())):
                self._call([name for name in lengths if lengths[name] == length], ids)
        for name in lengths:
            kept = max(RECENT, self._fresh.max_crop + 1)
            self._recent[name] = [*self._recent[name], *ids[name].tolist()][-kept:]

    def probabilities(self, name: int) -> Tensor:
        """Of the next token of a stream, (V,)."""
        return self.log_probabilities(name).exp()

    def log_probabilities(self, name: int) -> Tensor:
        self._row(name)
        logits = self._logits[name]
        if logits is None:
            raise UserError(f"stream {name} has read nothing yet, so nothing is known of what follows: feed it a token")
        return logits.log_softmax(-1)

    def state(self, name: int) -> State:
        return self._state([self._row(name)])

    def _call(self, names: list[int], ids: Mapping[int, Tensor]) -> None:
        """Streams that read equally many tokens, in calls of the model."""
        state, logits = self._state([self._row(name) for name in names]), None
        for part in torch.stack([ids[name] for name in names]).split(AT_ONCE, 1):
            x, state = self.model.hidden(part, state)
            logits = self.model.head(x[:, -1])
        self._replace(names, state)
        self._logits.update(zip(names, logits if logits is not None else ()))

    def _state(self, rows: list[int]) -> State:
        return self.session.state().select(rows)

    def _replace(self, names: list[int], state: State) -> None:
        self.session.select([row for row, name in enumerate(self.names) if name not in names])
        self.session.join(state)
        self.names = [*(name for name in self.names if name not in names), *names]

    def _come(self, state: State, logits: Tensor | None, recent: list[int]) -> int:
        name, self._next = self._next, self._next + 1
        self.session.join(state)
        self.names.append(name)
        self._logits[name], self._recent[name] = logits, list(recent)
        return name

    def _alone(self, name: int) -> Stream:
        state = self._state([self._row(name)])
        return Stream.at(self.model, self._fresh.vocabulary, state, self._logits[name], self._recent[name])

    def _row(self, name: int) -> int:
        if name not in self.names:
            raise UserError(f"there is no stream {name} in this batch; there are: {self.names}")
        return self.names.index(name)


def with_max_crop(core: Core, state: State, max_crop: int) -> State:
    """The same state with room to take more tokens back from now on, or fewer."""
    shapes = core.memory_shapes(max_crop)  # a core that cannot take tokens back says so here
    tensors = dict(state.tensors())
    for leaf in state.leaves():
        if leaf.role is FieldType.SLOTS:
            more = shapes[leaf.path][0] - leaf.tensor.shape[1]
            empty = leaf.tensor.new_zeros(leaf.tensor.shape[0], max(more, 0), *leaf.tensor.shape[2:])
            tensors[leaf.path] = torch.cat([empty, leaf.tensor[:, max(-more, 0) :]], 1)
    tensors["croppable"] = state.croppable.clamp(max=max_crop)
    changed: State = assemble({**state.form(), "max_crop": max_crop}, tensors)
    return changed


def encode(vocabulary: text.Vocabulary | None, given: str | bytes) -> np.ndarray:
    """Text as ids. Bytes that are no UTF-8 (on a command line they arrive as lone surrogates) are read by a vocabulary
    of bytes as they are; any other refuses them."""
    if vocabulary is None:
        raise UserError("this model reads tokens, not text: it has no vocabulary")
    try:
        data = given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given
        if isinstance(vocabulary, text.Bytes):
            return vocabulary.encode(data)
        return vocabulary.encode(data.decode("utf-8"))
    except UnicodeError as error:
        place = getattr(error, "start", 0)
        raise UserError(
            f"the text is not valid UTF-8 at byte {place}, for instance cut inside a character; only a model of bytes "
            "reads that"
        ) from None


def check_usable(model: LanguageModel) -> None:
    """A model that is being trained drops parts of itself; one whose parameters are not numbers has nothing to say."""
    if not isinstance(model, LanguageModel):
        raise UserError(f"a stream is of a model that reads one stream of symbols, not of a {type(model).__name__}")
    if model.training:
        raise UserError("decoding with dropout is not meant: call model.eval() first")
    for name, parameter in model.named_parameters():
        if not parameter.detach().isfinite().all():
            raise UserError(f"the model's parameter '{name}' holds NaN or infinity: its training went astray")


def fingerprint(model: LanguageModel) -> str:
    """Of all parameters, bit for bit."""
    return hash_tensors(dict(model.named_parameters()), "")


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    """The tensors, the facts and the note of a stream's file."""
    where = os.fspath(path)
    tensors, text = read_hashed(path, FORMAT)
    try:
        facts, note = json.loads(text["stream"]), json.loads(text["note"])
        if not {"form", "max_crop", "model"} <= facts.keys() or not {"since", "recent"} <= tensors.keys():
            raise KeyError("parts are missing")
    except (KeyError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{where} is not a readable stream: {error}") from error
    return tensors, facts, note


def check_parts(tensors: dict[str, Tensor], facts: dict[str, Any], model: LanguageModel, where: str) -> None:
    """A stream's file may come from anywhere: what its parts may be, apart from the state, which the model checks."""
    for name, most in (("since", ANCHOR), ("recent", 1 << 20)):
        tokens = tensors[name]
        right = tokens.dtype == torch.int64 and tokens.dim() == 1 and len(tokens) <= most
        if not right or not ((tokens >= 0) & (tokens < model.config.inputs)).all():
            raise UserError(f"{where} is damaged: '{name}' holds what the model cannot have read")
    logits, dtype = tensors.get("logits"), next(model.parameters()).dtype
    if logits is not None and (logits.dtype != dtype or logits.shape != (model.config.V,)):
        found = f"{logits.dtype} of {tuple(logits.shape)}"
        raise UserError(f"{where} is damaged: 'logits' is {found}, this model has {dtype} of ({model.config.V},)")
    if logits is not None and not logits.isfinite().all():
        raise UserError(f"{where} is damaged: 'logits' holds NaN or infinity")
    if type(facts["max_crop"]) is not int or facts["max_crop"] < 0:
        raise UserError(f"{where} is damaged: its max_crop is {facts['max_crop']!r}")


def check_restored(state: State, tensors: dict[str, Tensor], max_crop: int, model: LanguageModel, where: str) -> None:
    """Refuse a state that is not exactly one that a stream of this model with this max_crop can have."""
    try:
        model.core.check_state(state, 1)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} is damaged: {error}") from None
    if state.max_crop != (max_crop + 1 if max_crop else 0):
        raise UserError(f"{where} is damaged: its state is not of one stream with max_crop {max_crop}")
    count, croppable = (int(number) + len(tensors["since"]) for number in (state.count, state.croppable))
    if (count > 0) != ("logits" in tensors) or len(tensors["recent"]) < min(croppable, state.max_crop):
        raise UserError(f"{where} is damaged: the tokens that it read last, or what follows them, are missing")


def integer(number: Any, expected: str) -> int:
    """Return the number as a Python integer; anything that is none is refused, bools too."""
    try:
        if not isinstance(number, bool):
            return operator.index(number)
    except TypeError:
        pass
    raise TypeError(f"{expected}, not {number!r}")


def _array(tokens: Any) -> bool:
    return isinstance(tokens, np.ndarray | Tensor)
