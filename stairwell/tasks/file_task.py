"""What tasks that read a person's own files share: the symbols are kept, the files are opened when first read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Generic, Self, TypeVar

from stairwell.data.packed import Encoded
from stairwell.errors import UserError
from stairwell.tasks.base import Batch, Kind, Known, Split
from stairwell.tasks.batch_sources import SequenceSource, split_batches
from stairwell.text import Vocabulary

Place = TypeVar("Place")  # where a split lies
Tokens = TypeVar("Tokens", bound=Encoded)  # a split as it is read


class FileTask(ABC, Generic[Place, Tokens]):
    """`vocabulary`, if given, takes the place of one built from the training split. `known` is what a run has kept of
    its data: files that hold something else by now are refused. With `foreign` the data is not that of training: valid
    and test are read, or else everything as a whole."""

    kind: Kind = "language"
    reads_files: ClassVar[bool] = True
    symbols: ClassVar[str]  # the vocabulary's name
    paths: ClassVar[tuple[str, ...]]  # the options that say which files are read

    def __init__(
        self, config: Any, vocabulary: Vocabulary | None = None, known: Known | None = None, foreign: bool = False
    ) -> None:
        self.config: Any = config
        self._given, self._known, self._foreign = vocabulary, known, foreign
        if vocabulary is not None:
            self.fit(vocabulary)

    @abstractmethod
    def fit(self, vocabulary: Vocabulary) -> Vocabulary:
        """The vocabulary as this task uses it; one of another kind is refused."""

    @abstractmethod
    def find(self) -> dict[str, Place]:
        """Where every split lies."""

    @abstractmethod
    def digest(self, place: Place) -> str:
        """A hash of what a split holds."""

    @abstractmethod
    def build(self) -> Vocabulary:
        """A vocabulary from the training split."""

    @abstractmethod
    def encode(self, split: str) -> Tokens: ...

    @abstractmethod
    def tell(self) -> str:
        """`describe`, from the data itself."""

    @cached_property
    def vocabulary(self) -> Any:
        return self.fit(self._given if self._given is not None else self.build())

    @property
    def vocabularies(self) -> Mapping[str, Vocabulary]:
        return {self.symbols: self.vocabulary}

    @property
    def inputs(self) -> int:
        return int(self.vocabulary.size)

    @property
    @abstractmethod
    def outputs(self) -> int: ...

    def facts(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "outputs": self.outputs}

    def describe(self) -> str:
        return (self._known.about if self._known is not None else "") or self.tell()

    @cached_property
    def places(self) -> dict[str, Place]:
        try:
            return self.find()
        except UserError as error:
            if self._known is None:
                raise
            raise UserError(
                f"{error}; the run was trained on it: bring it back, or give eval other data (--data)"
            ) from None

    @cached_property
    def digests(self) -> dict[str, str]:
        return {split: self.digest(place) for split, place in self.places.items()}

    @property
    def where(self) -> str:
        """The data, as it was named."""
        return str(self.config.path)

    def fingerprint(self) -> dict[str, str]:
        return self.digests

    @cached_property
    def splits(self) -> dict[str, Tokens]:
        """The data, opened: all splits are encoded at once, so that a text that cannot be read is found out now."""
        if self._known is not None:
            self._check_unchanged(self._known.fingerprint)
        return {split: self.encode(split) for split in self.places}

    def _check_unchanged(self, kept: Mapping[str, str]) -> None:
        changed = [split for split in {**kept, **self.digests} if kept.get(split) != self.digests.get(split)]
        if changed:
            raise UserError(
                f"{self.where} has changed since the training began (in {' and '.join(changed)}), and what was "
                "trained on could now be in test; bring the old files back, or train anew in another --out, "
                "or evaluate what is there now as other data (--data)"
            )

    def batch_source(self, rows: range, batch: int, seed: int) -> SequenceSource:
        """Row r of the batch begins r/batch of the way into the training split; nothing depends on the seed."""
        return SequenceSource(self._split("train"), rows, batch)

    def batches(self, split: Split, rows: int, segment: int) -> Iterator[Batch]:
        """Every token of the split once, and every target once. Rows are cut at starts where there are enough of them
        (see `split_batches`)."""
        return split_batches(self._split(split), rows, segment)

    def _split(self, split: str) -> Tokens:
        if split not in self.splits:
            raise UserError(
                f"{self.where} has no {split} split; it has {' and '.join(self.splits)}: choose with --split"
            )
        return self.splits[split]

    @classmethod
    def kept(cls, config: Any, known: Known) -> Self:
        return cls(config, known.vocabularies[cls.symbols], known)

    def with_config(self, config: Any) -> Self:
        same_files = all(getattr(config, name) == getattr(self.config, name) for name in self.paths)
        known = Known({}, "", self._known.fingerprint) if self._known is not None and same_files else None
        return type(self)(config, self.vocabulary, known)

    @abstractmethod
    def with_data(self, path: str) -> Self:
        """The same symbols on other data, for evaluation only: valid and test files keep their splits, anything else is
        read as a whole."""
