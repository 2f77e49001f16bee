"""Vocabularies as fast tokenizers of transformers."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, normalizers, processors
from transformers import PreTrainedTokenizerFast

from stairwell import text
from stairwell.errors import UserError
from stairwell.tasks.pair_task import PairTask

END = "</s>"


def tokenizer(vocabulary: text.Vocabulary) -> PreTrainedTokenizerFast:
    """Return a vocabulary of bytes, characters or byte pairs as a tokenizer of transformers."""
    fast_tokenizer = vocabulary.fast_tokenizer()
    if fast_tokenizer is None:
        raise UserError(
            f"a vocabulary of {vocabulary.type_name} has no tokenizer in transformers; those of bytes, characters and "
            "bpe have one"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=fast_tokenizer, clean_up_tokenization_spaces=False, padding_side="left"
    )


def pair_tokenizers(task: PairTask) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """Return the tokenizers of source and target, the same one if they share a vocabulary.

    They append the end token and truncate texts to the model's limits in tokens; the limit of an article in words is
    not applied."""
    vocabulary, config = task.vocabulary, task.config
    source = _with_end(vocabulary.source, config.lowercase, config.max_source_length)
    return source, source if task.joint else _with_end(vocabulary.target, config.lowercase, config.max_target_length)


def _with_end(vocabulary: text.BPE, lowercase: bool, max_length: int) -> PreTrainedTokenizerFast:
    copy = Tokenizer.from_str(vocabulary.tokenizer.to_str())
    copy.add_special_tokens([END])
    # White space becomes one space, and the text starts with one, as every other word does.
    spaces = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(), normalizers.Prepend(" ")]
    copy.normalizer = normalizers.Sequence([*spaces, *([normalizers.Lowercase()] if lowercase else [])])
    copy.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, vocabulary.size)])
    copy.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=copy,
        eos_token=END,
        pad_token=END,
        model_max_length=max_length + 1,
        clean_up_tokenization_spaces=False,
    )
