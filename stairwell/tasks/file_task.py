"""Base class of tasks that read the user's files. The run saves the vocabulary; files are opened when first read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, Self, TypeVar

from stairwell import text
from stairwell.configs import Config
from stairwell.data.cache import writable_cache
from stairwell.data.packed import Encoded
from stairwell.errors import UserError
from stairwell.files import write_text
from stairwell.tasks.base import FamilyName, SavedTask, Split, Task, TokenBatch
from stairwell.tasks.batch_sources import SequenceSource, split_batches
from stairwell.text import Vocabulary

Location = TypeVar("Location")  # the files of a split
Data = TypeVar("Data", bound=Encoded)  # an encoded split
AnyVocabulary = TypeVar("AnyVocabulary", bound=Vocabulary)


@dataclass(frozen=True, kw_only=True)
class FileConfig(Config):
    path: str = ""
    "Files or folder to read."


class FileTask(ABC, Generic[Location, Data]):
    """`vocabulary` replaces one that is built from the training split. `saved` is what a run saved about its data:
    files with other contents are rejected. With `evaluation_only` the data is not that of training: valid and test are
    read if there are such files, otherwise all data is both."""

    config: FileConfig
    config_type: ClassVar[type[FileConfig]]
    family: FamilyName = "streams"
    vocabulary_name: ClassVar[str]
    path_options: ClassVar[tuple[str, ...]]  # the config fields that determine which files are read

    def __init__(
        self,
        config: FileConfig,
        vocabulary: Vocabulary | None = None,
        saved: SavedTask | None = None,
        evaluation_only: bool = False,
    ) -> None:
        self.config = config
        self._given_vocabulary, self._saved, self._evaluation_only = vocabulary, saved, evaluation_only
        if vocabulary is not None:
            self.adapt_vocabulary(vocabulary)  # raises if it is of the wrong type

    @abstractmethod
    def adapt_vocabulary(self, vocabulary: Vocabulary) -> Vocabulary:
        """Return the vocabulary with this task's options; raise if it is of the wrong type."""

    @abstractmethod
    def locate_splits(self) -> dict[str, Location]:
        """Return the files of every split."""

    @abstractmethod
    def digest(self, location: Location) -> str:
        """Return a hash of a split's contents."""

    @abstractmethod
    def build_vocabulary(self) -> Vocabulary:
        """Return a vocabulary built from the training split."""

    @abstractmethod
    def encode_split(self, split: str) -> Data: ...

    @abstractmethod
    def describe_data(self) -> str:
        """Return the description of a task that no run has saved."""

    @cached_property
    def vocabulary(self) -> Any:
        given = self._given_vocabulary
        return self.adapt_vocabulary(given if given is not None else self.build_vocabulary())

    @property
    def vocabularies(self) -> Mapping[str, Vocabulary]:
        """Vocabularies by name."""
        return {self.vocabulary_name: self.vocabulary}

    @property
    def inputs(self) -> int:
        return int(self.vocabulary.size)

    @property
    @abstractmethod
    def outputs(self) -> int: ...

    def facts(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "outputs": self.outputs}

    def describe(self) -> str:
        return (self._saved.description if self._saved is not None else "") or self.describe_data()

    @cached_property
    def locations(self) -> dict[str, Location]:
        try:
            return self.locate_splits()
        except UserError as error:
            if self._saved is None:
                raise
            raise UserError(
                f"{error}; the run was trained on it: restore it, or evaluate other data (--data)"
            ) from None

    @cached_property
    def digests(self) -> dict[str, str]:
        """A hash of the contents of every split."""
        return {split: self.digest(location) for split, location in self.locations.items()}

    @property
    def data_name(self) -> str:
        """The name of the data in messages."""
        return self.config.path

    @cached_property
    def splits(self) -> dict[str, Data]:
        """The encoded data. All splits are encoded at once, so that unreadable text is reported before training."""
        if self._saved is not None:
            self._check_unchanged(self._saved.fingerprint)
        return {split: self.encode_split(split) for split in self.locations}

    def _check_unchanged(self, saved: Mapping[str, str]) -> None:
        changed = [split for split in {**saved, **self.digests} if saved.get(split) != self.digests.get(split)]
        if changed:
            raise UserError(
                f"{self.data_name} has changed since the run started (in {' and '.join(changed)}), so training data "
                "could now be in test; restore the old files, or train again in another --out, "
                "or evaluate the new files as other data (--data)"
            )

    def batch_source(self, streams: range, batch: int, seed: int) -> SequenceSource:
        """Return training streams; stream b starts b/batch of the way into the training split, whatever the seed."""
        return SequenceSource(self.split_data("train"), streams, batch)

    def batches(self, split: Split, batch: int, segment: int) -> Iterator[TokenBatch]:
        """Yield every token and every target of the split once (see `split_batches`)."""
        return split_batches(self.split_data(split), batch, segment)

    def split_data(self, split: str) -> Data:
        if split not in self.splits:
            raise self.missing_split(split)
        return self.splits[split]

    def missing_split(self, split: str) -> UserError:
        names = " and ".join(self.locations)
        return UserError(f"{self.data_name} has no {split} split; it has {names}: choose with --split")

    @classmethod
    def from_saved(cls, config: Any, saved: SavedTask) -> Self:
        return cls(config, saved.vocabularies[cls.vocabulary_name], saved)

    def with_config(self, config: Any) -> Self:
        same_files = all(getattr(config, name) == getattr(self.config, name) for name in self.path_options)
        saved = SavedTask({}, "", self._saved.fingerprint) if self._saved is not None and same_files else None
        return type(self)(config, self.vocabulary, saved)

    @abstractmethod
    def with_data(self, path: str) -> Self:
        """Return a task with the same vocabulary and other data, for evaluation only."""


def vocabularies(task: Task) -> Mapping[str, Vocabulary]:
    """Return the vocabularies of a task by name; none if it does not read files."""
    return task.vocabularies if isinstance(task, FileTask) else {}


def cached_vocabulary(
    key: str, vocabulary_type: type[AnyVocabulary], build: Callable[[], AnyVocabulary]
) -> AnyVocabulary:
    """Return a vocabulary from the cache; build it if it is missing or damaged."""
    path = writable_cache() / f"{key}.vocabulary.json"
    try:
        cached = text.load(path)
        if isinstance(cached, vocabulary_type):
            return cached
    except (OSError, ValueError):
        pass
    vocabulary = build()
    write_text(path, vocabulary.dumps())
    return vocabulary
