"""Streams: feeding, forking, cropping, saving and batching give what one call of the model gives."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell import CORES, LanguageModel, LanguageModelConfig, configs
from stairwell.cores import config_type
from stairwell.decode import Session
from stairwell.decode.sampling import REPETITION_WINDOW
from stairwell.errors import UserError
from stairwell.runs.launch import fit
from stairwell.runs.presets import preset
from stairwell.state import with_max_crop
from stairwell.stream import FORMAT, MAX_TOKENS_PER_CALL, Stream, StreamBatch, read_file
from stairwell.tasks.labeled import LabeledVocabulary
from stairwell.tensor_files import read_hashed, write_hashed
from stairwell.text import BPE, Bytes, Characters

SIZES: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2, "memory": 5, "chunk": 3}
RECURRENT = ("lstm", "deltanet")  # these cores do not support crop
cores = pytest.mark.parametrize("name", sorted(CORES))


def make_model(name: str = "feedback", inputs: int = 7, outputs: int | None = None) -> LanguageModel:
    config = config_type(name)
    sizes = {key: value for key, value in SIZES.items() if key in configs.field_types(config)}
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(core=config(**sizes), inputs=inputs, outputs=outputs)).eval()


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(7, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def expected(model: LanguageModel, tokens: list[int]) -> torch.Tensor:
    """Return the log-probabilities after each token, from one call of the model."""
    return model(torch.tensor([tokens]), model.init_state(1))[0][0].log_softmax(-1)


@cores
def test_any_split_gives_the_same_log_probabilities(name: str) -> None:
    model, tokens = make_model(name), random_tokens(20)
    stream = Stream(model)
    stream.feed(tokens[0])
    stream.feed([])
    stream.feed(torch.tensor(tokens[1:6]))
    log_probs = stream.log_probs_each(iter(tokens[6:]))
    torch.testing.assert_close(log_probs, expected(model, tokens)[6:])
    torch.testing.assert_close(stream.probabilities(), expected(model, tokens)[-1].exp())
    assert stream.count == 20


@cores
def test_changing_returned_tensors_does_not_change_a_stream(name: str) -> None:
    model = make_model(name)
    stream = Stream(model)
    state = stream.state()
    stream.feed([1, 2])
    stream.feed(3)
    for tensor in [stream.next_logits(), *(tensor for _, tensor in [*state.tensors(), *stream.state().tensors()])]:
        tensor.zero_()
    torch.testing.assert_close(stream.log_probabilities(), expected(model, [1, 2, 3])[-1])
    stream.feed(4)
    torch.testing.assert_close(stream.log_probabilities(), expected(model, [1, 2, 3, 4])[-1])


@cores
def test_a_saved_stream_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, tokens = make_model(name), random_tokens(40)
    whole = Stream(model)
    whole.feed(tokens[:7])
    resumed = Stream(model)
    resumed.feed(tokens[:7])
    for i, token in enumerate(tokens[7:]):
        whole.feed(token)
        resumed.feed(token)
        if i % 9 == 4:
            resumed.save(tmp_path / "a.stream")
            resumed = Stream.load(tmp_path / "a.stream", make_model(name))
        assert torch.equal(whole.probabilities(), resumed.probabilities()), i
    assert resumed.count == whole.count


@pytest.mark.parametrize("saved", [(1,), (5, 17, 18, 40), (250, 599)])
def test_a_long_stream_projects_its_memory_once_and_resumes_bit_for_bit(
    saved: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory is projected when a stream is created or loaded, however many tokens it reads."""
    model, tokens = make_model(), random_tokens(600)
    loads: list[int] = []
    load = Session._load
    monkeypatch.setattr(Session, "_load", lambda self, *arguments: (loads.append(1), load(self, *arguments))[1])
    whole, resumed = Stream(model), Stream(model)
    for i, token in enumerate(tokens):
        whole.feed(token)
        resumed.feed(token)
        if i in saved:
            resumed.save(tmp_path / "a.stream")
            resumed = Stream.load(tmp_path / "a.stream", model)
    assert torch.equal(whole.probabilities(), resumed.probabilities()) and len(loads) == 2 + len(saved)
    torch.testing.assert_close(whole.log_probabilities(), expected(model, tokens)[-1])


def test_a_new_stream_can_be_saved_and_a_long_text_is_fed_in_several_calls(tmp_path: Path) -> None:
    model, tokens = make_model("lstm"), random_tokens(MAX_TOKENS_PER_CALL + 5)
    Stream(model).save(tmp_path / "new.stream")
    stream = Stream.load(tmp_path / "new.stream", model)
    stream.feed(tokens)
    torch.testing.assert_close(stream.log_probabilities(), expected(model, tokens)[-1], rtol=1e-4, atol=1e-5)


@cores
def test_a_fork_is_independent(name: str) -> None:
    model, tokens = make_model(name), random_tokens(20)
    stream, alone = Stream(model), Stream(model)
    for each in (stream, alone):
        each.feed(tokens[:10])
    fork = stream.fork()
    fork.feed(random_tokens(9, seed=5))
    for each in (stream, alone):
        each.feed(tokens[10])
    assert torch.equal(stream.probabilities(), alone.probabilities())
    torch.testing.assert_close(fork.log_probabilities(), expected(model, tokens[:10] + random_tokens(9, seed=5))[-1])


@cores
def test_a_fork_does_not_share_a_session(name: str) -> None:
    """The stream and its fork step in turns."""
    model, tokens = make_model(name), random_tokens(10)
    stream = Stream(model)
    stream.feed(tokens)
    fork = stream.fork()
    ours, theirs = random_tokens(6, seed=5), random_tokens(6, seed=6)
    for our_token, their_token in zip(ours, theirs):
        stream.feed(our_token)
        fork.feed(their_token)
    torch.testing.assert_close(stream.log_probabilities(), expected(model, tokens + ours)[-1])
    torch.testing.assert_close(fork.log_probabilities(), expected(model, tokens + theirs)[-1])
    assert stream.count == fork.count == 16 and stream.recent[-6:] == ours and fork.recent[-6:] == theirs


@pytest.mark.parametrize("name", sorted(set(CORES) - set(RECURRENT)))
def test_a_cropped_stream_equals_one_that_never_read_the_tokens(name: str) -> None:
    model, tokens = make_model(name), random_tokens(30)
    stream = Stream(model, max_crop=4)
    stream.feed(tokens[:20])
    stream.feed(random_tokens(4, seed=9))
    stream.crop(4)
    torch.testing.assert_close(stream.log_probabilities(), expected(model, tokens[:20])[-1])
    stream.feed(tokens[20:])
    torch.testing.assert_close(stream.log_probabilities(), expected(model, tokens)[-1])
    with pytest.raises(UserError, match="created with max_crop 4; create it with max_crop=5"):
        stream.crop(5)


@pytest.mark.parametrize("name", sorted(set(CORES) - set(RECURRENT)))
def test_loading_forking_and_batching_keep_max_crop(name: str, tmp_path: Path) -> None:
    model, tokens = make_model(name), random_tokens(20)
    stream = Stream(model, max_crop=4)
    stream.feed(tokens)
    for token in random_tokens(4, seed=9):
        stream.feed(token)
    stream.save(tmp_path / "a.stream")
    batch = StreamBatch(model, max_crop=4)
    loaded = Stream.load(tmp_path / "a.stream", model)
    for each in (loaded, loaded.fork(), batch.close(batch.open(loaded))):
        assert each.max_crop == 4
        each.crop(4)
        torch.testing.assert_close(each.log_probabilities(), expected(model, tokens)[-1])
        each.feed(random_tokens(6, seed=3))  # a second crop has the same limit
        each.crop(4)
        torch.testing.assert_close(each.log_probabilities(), expected(model, tokens + random_tokens(6, seed=3)[:2])[-1])
        assert each.recent[-22:] == tokens + random_tokens(6, seed=3)[:2]


def test_max_crop_may_exceed_the_repetition_window(tmp_path: Path) -> None:
    model, tokens = make_model(), random_tokens(2 * REPETITION_WINDOW)
    back = REPETITION_WINDOW + 10
    stream, batch = Stream(model, max_crop=back), StreamBatch(model, max_crop=back)
    stream_id = batch.open()
    stream.feed(tokens)
    batch.feed({stream_id: tokens})
    stream.save(tmp_path / "a.stream")
    for each in (Stream.load(tmp_path / "a.stream", model), batch.close(stream_id), stream):
        each.crop(back)
        torch.testing.assert_close(each.log_probabilities(), expected(model, tokens[:-back])[-1])
        assert each.recent == tokens[:-back][-len(each.recent) :] and each.count == len(tokens) - back


@torch.no_grad()
def test_with_max_crop_keeps_predictions_and_limits_crop() -> None:
    model, tokens = make_model(), random_tokens(20)
    _, state = model(torch.tensor([tokens[:15]]), model.init_state(1, max_crop=4))
    for max_crop in (0, 2, 4, 9):
        changed = with_max_crop(model.core, state, max_crop)
        assert changed.max_crop == max_crop and int(changed.croppable) == min(4, max_crop)
        logits = model(torch.tensor([tokens[15:]]), changed)[0]
        torch.testing.assert_close(logits[0].log_softmax(-1), expected(model, tokens)[15:])
        croppable = int(changed.croppable)
        logits = model(torch.tensor([tokens[15:]]), changed.crop(croppable))[0]
        log_probs = expected(model, tokens[: 15 - croppable] + tokens[15:])[15 - croppable :]
        torch.testing.assert_close(logits[0].log_softmax(-1), log_probs)
        with pytest.raises(ValueError, match=f"cannot crop {croppable + 1} tokens"):
            changed.crop(croppable + 1)


@pytest.mark.parametrize("batched", [False, True], ids=["stream", "batch"])
def test_consecutive_crops_share_max_crop(batched: bool) -> None:
    model, tokens = make_model(), random_tokens(20)
    stream, batch = Stream(model, max_crop=2), StreamBatch(model, max_crop=2)
    stream_id = batch.open()

    def crop(count: int) -> None:
        batch.crop(stream_id, count) if batched else stream.crop(count)

    def feed(given: list[int]) -> None:
        batch.feed({stream_id: given}) if batched else stream.feed(given)

    with pytest.raises(UserError, match=r"^cannot crop 1 token: the stream has read nothing$"):
        crop(1)
    feed(tokens[:1])
    with pytest.raises(UserError, match=r"^cannot crop 2 tokens: the stream has read only 1$"):
        crop(2)
    feed(tokens[1:])
    crop(1)
    with pytest.raises(UserError, match=r"^cannot crop 2 tokens: 1 token can be removed now, because"):
        crop(2)
    crop(1)
    with pytest.raises(
        UserError, match=r"^cannot crop 1 token: 0 tokens can be removed now, .* share max_crop 2; feed tokens first"
    ):
        crop(1)
    feed([3])
    crop(1)
    log_probs = (batch.close(stream_id) if batched else stream).log_probabilities()
    torch.testing.assert_close(log_probs, expected(model, tokens[:18])[-1])


@pytest.mark.parametrize("max_crop", [0, 1, 3])
def test_croppable_tokens_are_those_that_crop_can_remove(max_crop: int) -> None:
    stream = Stream(make_model(), max_crop=max_crop)
    for count, fed in ((0, 0), (1, 1), (2, 1), (12, 10)):
        stream.feed(random_tokens(fed))
        assert stream.count == count and stream.croppable == min(count, max_crop)
        fork = stream.fork()
        fork.crop(stream.croppable)
        with pytest.raises(UserError, match=r"^cannot crop \d "):
            fork.fork().crop(fork.croppable + 1)
    for left in reversed(range(max_crop)):
        stream.crop(1)
        assert stream.croppable == left


def test_cropping_all_tokens_gives_a_new_stream() -> None:
    model, tokens = make_model(), random_tokens(6)
    stream = Stream(model, max_crop=3)
    stream.feed(tokens[:3])
    stream.crop(3)
    with pytest.raises(UserError, match="has read nothing yet"):
        stream.probabilities()
    stream.feed(tokens)
    torch.testing.assert_close(stream.log_probabilities(), expected(model, tokens)[-1])


def test_token_losses_are_negative_log_probabilities() -> None:
    model, tokens = make_model(), random_tokens(9)
    stream = Stream(model)
    losses = torch.cat([stream.token_losses(part) for part in (tokens[:4], [], tokens[4:])])
    after_first = -expected(model, tokens)[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    torch.testing.assert_close(losses, torch.cat([torch.zeros(1), after_first]))
    with pytest.raises(UserError, match="predicts 3 labels, not its 7 input tokens"):
        Stream(make_model(outputs=3)).token_losses(tokens)


def test_events_are_fed_as_a_list_and_unknown_ones_change_nothing() -> None:
    stream, other = (Stream(make_model(inputs=2), LabeledVocabulary(("open", "shut"), ("x", "y"))) for _ in range(2))
    stream.feed(["open", "shut"])
    other.feed("open shut")
    assert torch.equal(stream.probabilities(), other.probabilities()) and stream.count == 2
    with pytest.raises(UserError, match=r"^'opne' was not in the training data, .*; did you mean 'open'"):
        stream.feed(["shut", "opne"])
    assert stream.count == 2
    with pytest.raises(UserError, match="a list of names is for models of labeled data"):
        Stream(make_model()).feed(["a", "b"])


def test_labels_are_not_taken_for_next_tokens_if_there_are_as_many() -> None:
    stream = Stream(make_model(inputs=2), LabeledVocabulary(("a", "b"), ("x", "y")))
    with pytest.raises(UserError, match="predicts 2 labels"):
        stream.token_losses("a b")


def test_sampling_depends_on_the_seed_and_does_not_feed() -> None:
    stream = Stream(make_model())
    stream.feed(1)
    samples = [stream.sample(generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1, 2, 3, 4)]
    assert samples[0] == samples[1] and len(set(samples)) > 1 and stream.count == 1
    assert stream.sample(temperature=0) == int(stream.probabilities().argmax())


def test_text_is_encoded_by_the_vocabulary() -> None:
    model = make_model(inputs=256)
    stream, ids = Stream(model, Bytes()), Stream(model)
    stream.feed("aé")
    ids.feed(list("aé".encode()))
    assert torch.equal(stream.probabilities(), ids.probabilities())
    stream.feed("é".encode()[:1])  # an incomplete character
    stream.feed("\udcff")  # a byte that is not UTF-8, as it arrives from a command line
    assert stream.recent[-2:] == [0xC3, 0xFF]


@pytest.mark.parametrize(
    "vocabulary", [Characters.build(["aé"]), BPE.build(["aé"], 256)], ids=lambda one: one.type_name
)
def test_incomplete_characters_raise_unless_tokens_are_bytes(vocabulary: Any) -> None:
    stream = Stream(make_model(inputs=vocabulary.size), vocabulary)
    with pytest.raises(UserError, match="not valid UTF-8 at byte 1"):
        stream.feed(b"a\xc3")
    assert stream.count == 0


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("text", "reads tokens, not text"),
        ([3, 7], "token 7 at position 1 is out of range: the model's vocabulary is 0..6"),
        (-1, "out of range"),
        ([0.5], "integers"),
        ([[1, 2]], "a sequence of integers"),
        (None, "integers, or text"),
        (True, "integers"),
    ],
    ids=str,
)
def test_invalid_tokens_raise(tokens: Any, message: str) -> None:
    stream = Stream(make_model())
    with pytest.raises(UserError, match=message):
        stream.feed(tokens)
    assert stream.count == 0


def test_loading_with_other_parameters_raises(tmp_path: Path) -> None:
    model = make_model()
    stream = Stream(model)
    stream.feed([1, 2, 3])
    stream.save(tmp_path / "a.stream")
    with torch.no_grad():
        model.head.weight[0, 0] += 1e-6  # type: ignore[union-attr]
    with pytest.raises(UserError, match="a model with other parameters"):
        Stream.load(tmp_path / "a.stream", model)


def test_loading_another_file_raises(tmp_path: Path) -> None:
    model = make_model()
    (tmp_path / "noise").write_bytes(b"\x00\x01noise")
    model.init_state(1).save(tmp_path / "state")
    for name, message in (("noise", "not a readable stream"), ("state", "not a saved stream of stairwell")):
        with pytest.raises(UserError, match=message):
            Stream.load(tmp_path / name, model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.int32])
def test_a_file_with_another_dtype_raises(dtype: torch.dtype, tmp_path: Path) -> None:
    model = make_model()
    stream = Stream(model, max_crop=2)
    stream.feed([1, 2, 3])
    stream.feed(4)
    stream.save(tmp_path / "a.stream")
    for name in read_file(tmp_path / "a.stream")[0]:
        rewrite(tmp_path / "a.stream", tmp_path / "b.stream", **{name: lambda tensor: tensor.to(dtype)})
        with pytest.raises(UserError, match=r"b\.stream is damaged: "):
            Stream.load(tmp_path / "b.stream", model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state.count": lambda tensor: tensor - 100}, "stream 0 has count -97"),
        ({"state.croppable": lambda tensor: tensor + 100}, "stream 0 has count 3 and croppable 103"),
        ({"state.memory": lambda tensor: tensor[:, 1:]}, r"its 'memory' is \(7, 1, 8\) per stream, this Feedback has"),
        ({"recent": lambda tensor: tensor[:2]}, "its last tokens or its logits are missing"),
        (
            {"logits": lambda tensor: tensor[1:]},
            r"'logits' is torch.float32 of shape \(6,\); this model's is .* of shape \(7,\)",
        ),
        ({"logits": None}, "its last tokens or its logits are missing"),
        ({"session.keys.0": None}, "there are 2 tensors of keys and values, not 3"),
        ({"session.keys.0": lambda tensor: tensor[..., :1]}, "do not fit this stream"),
        ({"session.values.0": lambda tensor: tensor.double()}, "have the wrong type"),
        ({"session.cursor.0": lambda tensor: tensor + 100}, "a cursor is 1.., which is not in"),
    ],
)
def test_a_file_that_its_model_cannot_have_written_raises(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = make_model()
    stream = Stream(model, max_crop=2)
    stream.feed([1, 2, 3])
    stream.save(tmp_path / "a.stream")
    rewrite(tmp_path / "a.stream", tmp_path / "b.stream", **changes)
    with pytest.raises(UserError, match=f"b.stream is damaged: .*{message}"):
        Stream.load(tmp_path / "b.stream", model)


def rewrite(path: Path, to: Path, **changes: Any) -> None:
    """Copy a stream's file with changed tensors and a valid hash."""
    tensors, metadata = read_hashed(path, FORMAT)
    for name, change in changes.items():
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change(tensors[name]).contiguous()
    write_hashed(to, tensors, metadata)


def test_a_file_with_any_changed_bit_raises(tmp_path: Path) -> None:
    model, path = make_model(), tmp_path / "a.stream"
    stream = Stream(model, max_crop=2)
    stream.feed([1, 2, 3])
    stream.feed(4)
    stream.save(path, {"seed": 1}, extra=torch.arange(3))
    content = path.read_bytes()
    for i in range(0, len(content), 3):
        path.write_bytes(content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :])
        with pytest.raises(UserError, match=r"stream (is damaged: its contents do not match|is not a|was written by)"):
            Stream.load(path, model)


def test_invalid_numbers_raise() -> None:
    stream = Stream(make_model(), max_crop=4)
    stream.feed([1, 2, 3, 4, 5])
    batch = StreamBatch(stream.model, max_crop=4)
    stream_id = batch.open(stream)
    for wrong in (1.5, True, "2", None, [1], torch.tensor(1.5), float("nan")):
        with pytest.raises(TypeError, match="crop takes an integer number of tokens, not"):
            stream.crop(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="crop takes an integer number of tokens, not"):
            batch.crop(stream_id, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="max_crop must be an integer number of tokens, not"):
            Stream(stream.model, max_crop=wrong)  # type: ignore[arg-type]
    stream.crop(torch.tensor(1))  # type: ignore[arg-type]
    assert stream.count == batch.state(stream_id).count - 1 == 4
    for wrong in (float("nan"), float("inf"), -1.0):
        with pytest.raises(UserError, match="temperature must be a finite number, 0 or more, not"):
            stream.sample(temperature=wrong)
    with pytest.raises(UserError, match="top_p must be above 0"):
        stream.sample(top_p=float("nan"))


def test_a_stream_saved_after_a_change_of_parameters_uses_the_new_ones(tmp_path: Path) -> None:
    model, tokens = make_model(), random_tokens(12)
    stream = Stream(model)
    for token in tokens[:10]:
        stream.feed(token)
    with torch.no_grad():
        model.core.layers[0].attention.key.weight.mul_(2)  # type: ignore[union-attr, index, operator]
    fork = stream.fork()
    stream.save(tmp_path / "a.stream")
    loaded = Stream.load(tmp_path / "a.stream", model)
    for each in (fork, loaded):
        each.feed(tokens[10])
        each.feed(tokens[11])
    assert torch.equal(fork.probabilities(), loaded.probabilities())


@cores
def test_parameters_changed_through_data_raise(name: str) -> None:
    """`p.data.add_()` does not change the version of a parameter."""
    model = make_model(name)
    for parameter in model.parameters():
        stream = Stream(model)
        stream.feed([1, 2, 3])
        stream.feed(4)
        parameter.data.add_(0.5)
        with pytest.raises(RuntimeError, match="the model's parameters have changed"):
            stream.feed(5)
        parameter.data.copy_(parameter.data - 0.5)
    stream = stream.fork()  # uses the current parameters
    stream.feed(5)


def test_models_with_nan_or_in_training_mode_raise() -> None:
    model = make_model()
    with torch.no_grad():
        model.embedding.vectors[1, 2] = torch.nan  # type: ignore[union-attr, index]
    with pytest.raises(UserError, match=r"'embedding.vectors' contains NaN"):
        Stream(model)
    with pytest.raises(UserError, match="training mode"):
        Stream(make_model().train())


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_stream_cannot_be_copied_or_pickled(duplicate: Any) -> None:
    stream = Stream(make_model())
    with pytest.raises(TypeError, match=r"use fork\(\) or save\(\)"):
        duplicate(stream)
    with pytest.raises(TypeError, match=r"use Session\(model, session.state\(\)\)"):
        duplicate(stream.session)


def test_a_vocabulary_of_another_size_raises(tmp_path: Path) -> None:
    model = make_model()
    Stream(model).save(tmp_path / "a.stream")
    for call in (
        lambda: Stream(model, Bytes()),
        lambda: StreamBatch(model, Bytes()),
        lambda: Stream.load(tmp_path / "a.stream", model, Bytes()),
    ):
        with pytest.raises(UserError, match="the vocabulary has 256 tokens, but the model reads 7"):
            call()


@cores
def test_streams_of_a_batch_are_independent(name: str) -> None:
    model = make_model(name)
    batch = StreamBatch(model)
    a, b = batch.open(), batch.open()
    past: dict[int, list[int]] = {a: random_tokens(6, 1), b: random_tokens(3, 2)}
    batch.feed(past)
    for step in range(8):
        if step == 2:
            c = batch.open()
            past[c] = []
        if step == 4:
            d = batch.fork(a)
            past[d] = list(past[a])
        if step == 6:
            closed = batch.close(b)
            torch.testing.assert_close(closed.log_probabilities(), expected(model, past.pop(b))[-1])
        tokens = {stream: random_tokens(1, 100 * step + stream) for stream in past if step != 5 or stream != a}
        batch.feed(tokens)
        for stream, new in tokens.items():
            past[stream] += new
        for stream, read in past.items():
            torch.testing.assert_close(batch.log_probabilities(stream), expected(model, read)[-1])
    assert len(batch) == 3
    reopened = batch.open(closed)
    batch.feed({reopened: 3})
    with pytest.raises(UserError, match="no stream 1 in this batch"):
        batch.feed({b: 3})


def test_the_stream_of_a_generated_task_reads_and_predicts_names() -> None:
    stream = Stream.open("s5-feedback", "cpu")
    stream.feed("10234 12340 10234")  # swap two elements, a cycle, swap the same places again
    assert stream.vocabulary.labels[int(stream.probabilities().argmax())] == "20341"  # type: ignore[union-attr]
    stream.feed(["10234", "10234"])
    assert stream.vocabulary.labels[int(stream.probabilities().argmax())] == "20341"  # type: ignore[union-attr]
    with pytest.raises(UserError, match="predicts 120 labels, not its 2 input tokens"):
        stream.token_losses([0])


def test_a_stream_of_a_batch_can_be_cropped() -> None:
    model, tokens = make_model(), random_tokens(9)
    batch = StreamBatch(model, max_crop=3)
    a, b = batch.open(), batch.open()
    batch.feed({a: [*tokens, 1, 2, 3], b: tokens[:4]})
    batch.crop(a, 3)
    torch.testing.assert_close(batch.log_probabilities(a), expected(model, tokens)[-1])
    batch.feed({a: [4, 5]})
    batch.crop(a, 2)
    torch.testing.assert_close(batch.log_probabilities(a), expected(model, tokens)[-1])
    assert batch.close(batch.fork(a)).recent == tokens
    torch.testing.assert_close(batch.log_probabilities(b), expected(model, tokens[:4])[-1])


@pytest.mark.parametrize("task", ["lm", "labeled"])
def test_models_with_named_tokens_are_fed_by_name(task: str, tmp_path: Path) -> None:
    """The examples of docs/streams.md."""
    lines, labels = "login read write logout\n" * 40, "idle working working idle\n" * 40
    (tmp_path / "machine.tokens").write_text(lines)
    (tmp_path / "machine.labels").write_text(labels)
    options = {"core.width": "8", "core.heads": "1", "core.layers": "1", "train.steps": "1", "train.batch": "2"}
    options |= {"train.segment": "4", "task.path": str(tmp_path / "machine.tokens")}
    if task == "lm":
        options |= {"task.unit": "words", "task.documents": "lines"}
    fit(
        preset(f"{task}/feedback").with_options(options),
        tmp_path / "run",
        "cpu",
    )
    stream = Stream.open(tmp_path / "run", "cpu")
    stream.feed("login read")
    assert stream.count == 2
    if task == "lm":
        assert float(stream.token_losses("write")) > 0
        stream.feed("unknown-event")
    else:
        assert stream.vocabulary.labels == ("idle", "working") and len(stream.probabilities()) == 2  # type: ignore[union-attr]
        with pytest.raises(UserError, match="unknown-event"):
            stream.feed("unknown-event")
