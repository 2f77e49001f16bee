"""A stream reads, forks, crops and stops for days, and is always where it would be had nobody touched it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stairwell import CORES, LanguageModel, LanguageModelConfig, configs
from stairwell.cores import config_type
from stairwell.errors import UserError
from stairwell.runs.launch import fit
from stairwell.runs.presets import preset
from stairwell.stream import ANCHOR, AT_ONCE, FORMAT, RECENT, Stream, StreamBatch, read_file, with_max_crop
from stairwell.tensor_files import read_hashed, write_hashed
from stairwell.text import BPE, Bytes, Characters

SIZES: dict[str, Any] = {"width": 8, "heads": 2, "layers": 2, "memory": 5, "chunk": 3}
CARRIED = ("lstm", "deltanet")  # cores that cannot take a token back
cores = pytest.mark.parametrize("name", sorted(CORES))


def make_model(name: str = "feedback", inputs: int = 7, outputs: int | None = None) -> LanguageModel:
    kind = config_type(name)
    sizes = {key: value for key, value in SIZES.items() if key in configs.field_types(kind)}
    torch.manual_seed(0)
    return LanguageModel(LanguageModelConfig(core=kind(**sizes), inputs=inputs, outputs=outputs)).eval()


def drawn(count: int, seed: int = 0) -> list[int]:
    return torch.randint(7, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def expected(model: LanguageModel, tokens: list[int]) -> torch.Tensor:
    """Log-probabilities after each token, in one call."""
    return model(torch.tensor([tokens]), model.init_state(1))[0][0].log_softmax(-1)


@cores
def test_any_way_of_feeding_gives_what_one_call_gives(name: str) -> None:
    model, tokens = make_model(name), drawn(20)
    stream = Stream(model)
    stream.feed(tokens[0])
    stream.feed([])
    stream.feed(torch.tensor(tokens[1:6]))
    found = stream.follow(iter(tokens[6:]))
    torch.testing.assert_close(found, expected(model, tokens)[6:])
    torch.testing.assert_close(stream.probabilities(), expected(model, tokens)[-1].exp())
    assert stream.count == 20


@cores
def test_a_stream_that_was_saved_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, tokens = make_model(name), drawn(40)
    whole = Stream(model)
    whole.feed(tokens[:7])
    stopped = Stream(model)
    stopped.feed(tokens[:7])
    for i, token in enumerate(tokens[7:]):
        whole.feed(token)
        stopped.feed(token)
        if i % 9 == 4:
            stopped.save(tmp_path / "a.stream")
            stopped = Stream.load(tmp_path / "a.stream", make_model(name))
        assert torch.equal(whole.probabilities(), stopped.probabilities()), i
    assert stopped.count == whole.count


def test_it_goes_on_bit_for_bit_wherever_its_session_was_made_anew(tmp_path: Path) -> None:
    model, tokens = make_model(), drawn(2 * ANCHOR + 40)
    whole, stopped = Stream(model), Stream(model)
    for i, token in enumerate(tokens):
        whole.feed(token)
        stopped.feed(token)
        if i in (ANCHOR - 1, ANCHOR, ANCHOR + 1, 2 * ANCHOR - 7):
            stopped.save(tmp_path / "a.stream")
            stopped = Stream.load(tmp_path / "a.stream", model)
    assert torch.equal(whole.probabilities(), stopped.probabilities())
    torch.testing.assert_close(whole.log_probabilities(), expected(model, tokens)[-1])


def test_a_long_text_is_read_in_parts_and_a_fresh_stream_can_be_saved(tmp_path: Path) -> None:
    model, tokens = make_model("lstm"), drawn(AT_ONCE + 5)
    Stream(model).save(tmp_path / "fresh.stream")
    stream = Stream.load(tmp_path / "fresh.stream", model)
    stream.feed(tokens)
    torch.testing.assert_close(stream.log_probabilities(), expected(model, tokens)[-1], rtol=1e-4, atol=1e-5)


@cores
def test_a_fork_goes_its_own_way(name: str) -> None:
    model, tokens = make_model(name), drawn(20)
    stream, alone = Stream(model), Stream(model)
    for each in (stream, alone):
        each.feed(tokens[:10])
    twin = stream.fork()
    twin.feed(drawn(9, seed=5))
    for each in (stream, alone):
        each.feed(tokens[10])
    assert torch.equal(stream.probabilities(), alone.probabilities())
    torch.testing.assert_close(twin.log_probabilities(), expected(model, tokens[:10] + drawn(9, seed=5))[-1])


@cores
def test_a_fork_and_its_parent_step_apart(name: str) -> None:
    """Token by token, in turns: decoding sessions are not shared."""
    model, tokens = make_model(name), drawn(10)
    stream = Stream(model)
    stream.feed(tokens)
    twin = stream.fork()
    ours, theirs = drawn(6, seed=5), drawn(6, seed=6)
    for mine, other in zip(ours, theirs):
        stream.feed(mine)
        twin.feed(other)
    torch.testing.assert_close(stream.log_probabilities(), expected(model, tokens + ours)[-1])
    torch.testing.assert_close(twin.log_probabilities(), expected(model, tokens + theirs)[-1])
    assert stream.count == twin.count == 16 and stream.recent[-6:] == ours and twin.recent[-6:] == theirs


@pytest.mark.parametrize("name", sorted(set(CORES) - set(CARRIED)))
def test_cropped_tokens_were_never_read(name: str) -> None:
    model, tokens = make_model(name), drawn(30)
    stream = Stream(model, max_crop=4)
    stream.feed(tokens[:20])
    stream.feed(drawn(4, seed=9))
    stream.crop(4)
    torch.testing.assert_close(stream.log_probabilities(), expected(model, tokens[:20])[-1])
    stream.feed(tokens[20:])
    torch.testing.assert_close(stream.log_probabilities(), expected(model, tokens)[-1])
    with pytest.raises(UserError, match="made with max_crop 4; make it with max_crop=5"):
        stream.crop(5)


@pytest.mark.parametrize("name", sorted(set(CORES) - set(CARRIED)))
def test_a_saved_stream_can_be_cropped_as_far_as_before(name: str, tmp_path: Path) -> None:
    """Loaded, forked, and taken into a batch and out of it."""
    model, tokens = make_model(name), drawn(20)
    stream = Stream(model, max_crop=4)
    stream.feed(tokens)
    for token in drawn(4, seed=9):
        stream.feed(token)
    stream.save(tmp_path / "a.stream")
    batch = StreamBatch(model, max_crop=4)
    loaded = Stream.load(tmp_path / "a.stream", model)
    for each in (loaded, loaded.fork(), batch.close(batch.open(loaded))):
        assert each.max_crop == 4
        each.crop(4)
        torch.testing.assert_close(each.log_probabilities(), expected(model, tokens)[-1])
        each.feed(drawn(6, seed=3))  # it can do so again
        each.crop(4)
        torch.testing.assert_close(each.log_probabilities(), expected(model, tokens + drawn(6, seed=3)[:2])[-1])
        assert each.recent[-22:] == tokens + drawn(6, seed=3)[:2]


def test_more_tokens_can_be_cropped_than_are_kept_for_penalties(tmp_path: Path) -> None:
    model, tokens = make_model(), drawn(2 * RECENT)
    back = RECENT + 10
    stream, batch = Stream(model, max_crop=back), StreamBatch(model, max_crop=back)
    number = batch.open()
    stream.feed(tokens)
    batch.feed({number: tokens})
    stream.save(tmp_path / "a.stream")
    for each in (Stream.load(tmp_path / "a.stream", model), batch.close(number), stream):
        each.crop(back)
        torch.testing.assert_close(each.log_probabilities(), expected(model, tokens[:-back])[-1])
        assert each.recent == tokens[:-back][-len(each.recent) :] and each.count == len(tokens) - back


@torch.no_grad()
def test_a_state_with_other_slack_says_and_crops_the_same() -> None:
    model, tokens = make_model(), drawn(20)
    _, state = model(torch.tensor([tokens[:15]]), model.init_state(1, max_crop=4))
    for max_crop in (0, 2, 4, 9):
        changed = with_max_crop(model.core, state, max_crop)
        assert changed.max_crop == max_crop and int(changed.croppable) == min(4, max_crop)
        said = model(torch.tensor([tokens[15:]]), changed)[0]
        torch.testing.assert_close(said[0].log_softmax(-1), expected(model, tokens)[15:])
        can = int(changed.croppable)
        said = model(torch.tensor([tokens[15:]]), changed.crop(can))[0]
        wanted = expected(model, tokens[: 15 - can] + tokens[15:])[15 - can :]
        torch.testing.assert_close(said[0].log_softmax(-1), wanted)
        with pytest.raises(ValueError, match=f"can take back {can} "):
            changed.crop(can + 1)


def test_cropping_everything_leaves_a_fresh_stream() -> None:
    model, tokens = make_model(), drawn(6)
    stream = Stream(model, max_crop=3)
    stream.feed(tokens[:3])
    stream.crop(3)
    with pytest.raises(UserError, match="has read nothing yet"):
        stream.probabilities()
    stream.feed(tokens)
    torch.testing.assert_close(stream.log_probabilities(), expected(model, tokens)[-1])


def test_surprise_is_what_a_token_costs() -> None:
    model, tokens = make_model(), drawn(9)
    stream = Stream(model)
    found = torch.cat([stream.surprise(tokens[:4]), stream.surprise([]), stream.surprise(tokens[4:])])
    wanted = -expected(model, tokens)[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    torch.testing.assert_close(found, torch.cat([torch.zeros(1), wanted]))
    with pytest.raises(UserError, match="predicts 3 labels, not its 7 input symbols"):
        Stream(make_model(outputs=3)).surprise(tokens)


def test_sampling_follows_the_seed_and_does_not_read() -> None:
    stream = Stream(make_model())
    stream.feed(1)
    draws = [stream.sample(generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1, 2, 3, 4)]
    assert draws[0] == draws[1] and len(set(draws)) > 1 and stream.count == 1
    assert stream.sample(temperature=0) == int(stream.probabilities().argmax())


def test_text_is_read_in_the_vocabulary_of_the_model() -> None:
    model = make_model(inputs=256)
    stream, ids = Stream(model, Bytes()), Stream(model)
    stream.feed("aé")
    ids.feed(list("aé".encode()))
    assert torch.equal(stream.probabilities(), ids.probabilities())
    stream.feed("é".encode()[:1])  # half a character is a byte like any other
    stream.feed("\udcff")  # as a command line hands over what is no text
    assert stream.recent[-2:] == [0xC3, 0xFF]


@pytest.mark.parametrize("vocabulary", [Characters.build(["aé"]), BPE.build(["aé"], 256)], ids=lambda one: one.kind)
def test_text_cut_inside_a_character_is_refused_where_tokens_are_characters(vocabulary: Any) -> None:
    stream = Stream(make_model(inputs=vocabulary.size), vocabulary)
    with pytest.raises(UserError, match="not valid UTF-8 at byte 1"):
        stream.feed(b"a\xc3")
    assert stream.count == 0


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ("text", "reads tokens, not text"),
        ([3, 7], "token 7 at place 1 is out of range: the model knows 0..6"),
        (-1, "out of range"),
        ([0.5], "whole numbers"),
        ([[1, 2]], "in a row"),
        (None, "whole numbers, or text"),
        (True, "whole numbers"),
    ],
    ids=str,
)
def test_what_is_no_token_is_refused(tokens: Any, told: str) -> None:
    stream = Stream(make_model())
    with pytest.raises(UserError, match=told):
        stream.feed(tokens)
    assert stream.count == 0


def test_a_stream_belongs_to_the_parameters_that_wrote_it(tmp_path: Path) -> None:
    model = make_model()
    stream = Stream(model)
    stream.feed([1, 2, 3])
    stream.save(tmp_path / "a.stream")
    with torch.no_grad():
        model.head.vectors[0, 0] += 1e-6  # type: ignore[union-attr]
    with pytest.raises(UserError, match="a model with other parameters"):
        Stream.load(tmp_path / "a.stream", model)


def test_what_is_no_stream_is_told(tmp_path: Path) -> None:
    model = make_model()
    (tmp_path / "noise").write_bytes(b"\x00\x01noise")
    model.init_state(1).save(tmp_path / "state")
    for name, told in (("noise", "not a readable stream"), ("state", "not a saved stream of stairwell")):
        with pytest.raises(UserError, match=told):
            Stream.load(tmp_path / name, model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.int32])
def test_a_stream_with_a_tensor_of_another_type_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
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
    ("changes", "told"),
    [
        ({"state.count": lambda tensor: tensor - 100}, "stream 0 has count -97"),
        ({"state.room": lambda tensor: tensor + 100}, "stream 0 has count 3 and room 103"),
        ({"state.memory": lambda tensor: tensor[:, 1:]}, r"its 'memory' is \(7, 1, 8\) a row, this Feedback has"),
        ({"recent": lambda tensor: tensor[:2]}, "the tokens that it read last, or what follows them, are missing"),
        ({"logits": lambda tensor: tensor[1:]}, r"'logits' is torch.float32 of \(6,\), this model has .* of \(7,\)"),
        ({"logits": None}, "the tokens that it read last, or what follows them, are missing"),
    ],
)
def test_a_stream_that_its_model_cannot_have_written_is_refused(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    model = make_model()
    stream = Stream(model, max_crop=2)
    stream.feed([1, 2, 3])
    stream.save(tmp_path / "a.stream")
    rewrite(tmp_path / "a.stream", tmp_path / "b.stream", **changes)
    with pytest.raises(UserError, match=f"b.stream is damaged: .*{told}"):
        Stream.load(tmp_path / "b.stream", model)


def rewrite(path: Path, to: Path, **changes: Any) -> None:
    """A stream's file with tensors changed, and all else right, the hash included."""
    tensors, text = read_hashed(path, FORMAT)
    for name, change in changes.items():
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change(tensors[name]).contiguous()
    write_hashed(to, tensors, text)


def test_a_stream_with_any_bit_changed_is_refused(tmp_path: Path) -> None:
    model, path = make_model(), tmp_path / "a.stream"
    stream = Stream(model, max_crop=2)
    stream.feed([1, 2, 3])
    stream.feed(4)
    stream.save(path, {"seed": 1}, drawn=torch.arange(3))
    content = path.read_bytes()
    for place in range(0, len(content), 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        with pytest.raises(UserError, match=r"stream (is damaged: its contents do not match|is not a|was written by)"):
            Stream.load(path, model)


def test_a_stream_refuses_numbers_that_mean_nothing() -> None:
    stream = Stream(make_model(), max_crop=4)
    stream.feed([1, 2, 3, 4, 5])
    batch = StreamBatch(stream.model, max_crop=4)
    name = batch.open(stream)
    for wrong in (1.5, True, "2", None, [1], torch.tensor(1.5), float("nan")):
        with pytest.raises(TypeError, match="crop takes an integer number of tokens, not"):
            stream.crop(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="crop takes an integer number of tokens, not"):
            batch.crop(name, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="max_crop is an integer number of tokens, not"):
            Stream(stream.model, max_crop=wrong)  # type: ignore[arg-type]
    stream.crop(torch.tensor(1))  # type: ignore[arg-type]
    assert stream.count == batch.state(name).count - 1 == 4
    for wrong in (float("nan"), float("inf"), -1.0):
        with pytest.raises(UserError, match="temperature must be a finite number, 0 or more, not"):
            stream.sample(temperature=wrong)
    with pytest.raises(UserError, match="top_p must be above 0"):
        stream.sample(top_p=float("nan"))


@cores
def test_a_stream_finds_parameters_that_were_changed_behind_autograd(name: str) -> None:
    """`p.data.mul_()` counts no version; the stream's projected past would be of the parameters before."""
    model = make_model(name)
    for parameter in model.parameters():
        stream = Stream(model)
        stream.feed([1, 2, 3])
        stream.feed(4)
        parameter.data.add_(0.5)
        with pytest.raises(RuntimeError, match="the model's weights have changed"):
            stream.feed(5)
        parameter.data.copy_(parameter.data - 0.5)
    stream = stream.fork()  # goes on with the parameters as they are now
    stream.feed(5)


def test_parameters_that_are_no_numbers_are_told() -> None:
    model = make_model()
    with torch.no_grad():
        model.embedding.vectors[1, 2] = torch.nan  # type: ignore[union-attr, index]
    with pytest.raises(UserError, match=r"'embedding.vectors' holds NaN"):
        Stream(model)
    with pytest.raises(UserError, match="decoding with dropout"):
        Stream(make_model().train())


@cores
def test_streams_come_and_go_in_a_batch_and_each_reads_as_if_alone(name: str) -> None:
    model = make_model(name)
    batch = StreamBatch(model)
    a, b = batch.open(), batch.open()
    said: dict[int, list[int]] = {a: drawn(6, 1), b: drawn(3, 2)}
    batch.feed(said)
    for step in range(8):
        if step == 2:
            c = batch.open()
            said[c] = []
        if step == 4:
            d = batch.fork(a)
            said[d] = list(said[a])
        if step == 6:
            left = batch.close(b)
            torch.testing.assert_close(left.log_probabilities(), expected(model, said.pop(b))[-1])
        tokens = {stream: drawn(1, 100 * step + stream) for stream in said if step != 5 or stream != a}
        batch.feed(tokens)
        for stream, new in tokens.items():
            said[stream] += new
        for stream, past in said.items():
            torch.testing.assert_close(batch.log_probabilities(stream), expected(model, past)[-1])
    assert len(batch) == 3
    again = batch.open(left)
    batch.feed({again: 3})
    with pytest.raises(UserError, match="no stream 1 in this batch"):
        batch.feed({b: 3})


def test_a_stream_of_a_batch_can_be_cropped() -> None:
    model, tokens = make_model(), drawn(9)
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


@pytest.mark.parametrize("kind", ["events", "readings"])
def test_a_run_on_logs_or_readings_is_fed_by_name(kind: str, tmp_path: Path) -> None:
    """As docs/streams.md tells it: what was trained on names takes names."""
    lines, labels = "login read write logout\n" * 40, "idle working working idle\n" * 40
    (tmp_path / "machine.tokens").write_text(lines)
    (tmp_path / "machine.labels").write_text(labels)
    options = {"core.width": "8", "core.heads": "1", "core.layers": "1", "train.steps": "1", "train.batch": "2"}
    options |= {"train.segment": "4", "task.path": str(tmp_path / "machine.tokens")}
    if kind == "events":
        options |= {"task.unit": "words", "task.documents": "lines"}
    fit(
        preset("lm/feedback" if kind == "events" else "labeled/feedback").with_options(options),
        tmp_path / "run",
        "cpu",
    )
    stream = Stream.open(tmp_path / "run", "cpu")
    stream.feed("login read")
    assert stream.count == 2
    if kind == "events":
        assert float(stream.surprise("write")) > 0
        stream.feed("never-heard-of")
    else:
        assert stream.vocabulary.labels == ("idle", "working") and len(stream.probabilities()) == 2  # type: ignore[union-attr]
        with pytest.raises(UserError, match="never-heard-of"):
            stream.feed("never-heard-of")
