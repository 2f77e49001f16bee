"""Published corpora: URLs, sizes, checksums and licenses.

A checksum that is not published is None. Sources of the numbers:
- enwik8: size, md5 and sha1 of the text by Matt Mahoney (mattmahoney.net/dc/textdata.html); the sha256 of the text was
  computed from a copy with this md5. Size and sha256 of the archive: Hugging Face's dataset card for enwik8, and
  the DataDeps of Transformers.jl.
- WikiText: md5 of the archives and the line counts from torchtext (datasets/wikitext2.py, wikitext103.py); sizes and
  sha256 from Hugging Face datasets (datasets/wikitext/dataset_infos.json). No checksums are published for single files.
  The original bucket, research.metamind.io, has rejected downloads since 2024; Stephen Merity, the first author, serves
  the same archives, so his URL comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

from stairwell.errors import UserError, suggestion


@dataclass(frozen=True)
class FileInfo:
    """Published facts of a file; None: not published."""

    name: str
    size: int | None = None
    md5: str | None = None
    sha256: str | None = None
    lines: int | None = None


@dataclass(frozen=True)
class Corpus:
    name: str
    description: str
    license: str
    urls: tuple[str, ...]  # of the archive, tried in this order
    archive: FileInfo
    files: tuple[FileInfo, ...]  # named as in the archive


def _wikitext(name: str, description: str, extension: str, archive: FileInfo, train_lines: int) -> Corpus:
    lines = {"train": train_lines, "valid": 3_760, "test": 4_358}
    return Corpus(
        name,
        description,
        "CC BY-SA",
        (
            f"https://wikitext.smerity.com/{archive.name}",
            f"https://s3.amazonaws.com/research.metamind.io/wikitext/{archive.name}",
        ),
        archive,
        tuple(FileInfo(f"{name}/wiki.{split}.{extension}", lines=count) for split, count in lines.items()),
    )


CORPORA: dict[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            "enwik8",
            "the first 100 million bytes of the English Wikipedia of 2006, for byte-level models",
            "CC BY-SA",
            ("https://mattmahoney.net/dc/enwik8.zip", "http://mattmahoney.net/dc/enwik8.zip"),
            FileInfo(
                "enwik8.zip", 36_445_475, sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc"
            ),
            (
                FileInfo(
                    "enwik8",
                    100_000_000,
                    "a1fa5ffddb56f4953e226637dabbb36a",
                    "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
                ),
            ),
        ),
        _wikitext(
            "wikitext-103",
            "good Wikipedia articles, 103 million words, rare words replaced by <unk>",
            "tokens",
            FileInfo(
                "wikitext-103-v1.zip",
                190_229_076,
                "9ddaacaf6af0710eda8c456decff7832",
                "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
            ),
            1_801_350,
        ),
        _wikitext(
            "wikitext-2",
            "good Wikipedia articles, 2 million words, rare words replaced by <unk>",
            "tokens",
            FileInfo(
                "wikitext-2-v1.zip",
                4_475_746,
                "542ccefacc6c27f945fb54453812b3cd",
                "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
            ),
            36_718,
        ),
        _wikitext(
            "wikitext-103-raw",
            "WikiText-103 without <unk>, for models of bytes, characters and byte pairs",
            "raw",
            FileInfo(
                "wikitext-103-raw-v1.zip",
                191_984_949,
                sha256="91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
            ),
            1_801_350,
        ),
        _wikitext(
            "wikitext-2-raw",
            "WikiText-2 without <unk>, for models of bytes, characters and byte pairs",
            "raw",
            FileInfo(
                "wikitext-2-raw-v1.zip",
                4_721_645,
                sha256="ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11",
            ),
            36_718,
        ),
    )
}


def find_corpus(name: str) -> Corpus:
    """Return a published corpus by its name."""
    if name not in CORPORA:
        raise UserError(f"unknown corpus '{name}'{suggestion(name, CORPORA)}")
    return CORPORA[name]
