"""States: select, reset, join, crop, move, pack, save and load."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils import _pytree as pytree

from stairwell.cores import CORES, build
from stairwell.cores.core import CoreState, SourceState
from stairwell.cores.feedback import FeedbackConfig, FeedbackState
from stairwell.cores.lstm import LSTMConfig
from stairwell.cores.staircase import GlobalCachedStaircaseConfig
from stairwell.cores.transformer_xl import TransformerXLConfig
from stairwell.decode import Session
from stairwell.errors import UserError
from stairwell.models import LanguageModel, LanguageModelConfig
from stairwell.state import FLOAT_DTYPES, FORMAT, State
from stairwell.tensor_files import write_hashed
from stairwell.train.distributed import Distributed

pytestmark = pytest.mark.quick

SMALL: dict[str, Any] = {"width": 4, "layers": 2}
DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.complex64, torch.bool,
    torch.uint8, torch.int8, torch.int32, torch.int64,
)  # fmt: skip


def make_state(name: str, max_crop: int = 0) -> State:
    """Return a state of three streams after seven tokens; one stream has started at the fifth."""
    torch.manual_seed(0)
    core = build(CORES[name].config(**SMALL))
    start = torch.zeros(3, 7, dtype=torch.bool)
    start[1, 4] = True
    with torch.no_grad():
        return core(torch.randn(3, 7, 4), core.init_state(3, max_crop), start)[1]


def with_source(lengths: list[int], name: str = "feedback", max_crop: int = 0) -> SourceState:
    """Return a nested state whose streams have sources of different lengths."""
    states = []
    for i, length in enumerate(lengths):
        torch.manual_seed(10 + i)
        mask = torch.ones(1, length, dtype=torch.bool)
        decoder: Any = make_state(name, max_crop).select([i])
        states.append(SourceState(decoder=decoder, source=torch.randn(1, length, 4), source_mask=mask))
    return SourceState.join(states)


def assert_same(actual: State, expected: State) -> None:
    assert actual.spec() == expected.spec()
    for (path, a), (expected_path, b) in zip(actual.tensors(), expected.tensors(), strict=True):
        assert path == expected_path
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a, b), path


@pytest.mark.parametrize("name", sorted(CORES))
def test_save_and_load_are_bit_identical(name: str, tmp_path: Path) -> None:
    for state in (
        make_state(name),
        make_state(name, 0 if name in ("lstm", "deltanet") else 2),
        with_source([2, 3], name),
    ):
        state.save(tmp_path / "state.safetensors")
        again = State.load(tmp_path / "state.safetensors")
        assert type(again) is type(state)
        assert again.max_crop == state.max_crop
        assert_same(again, state)


def test_loading_nan_raises(tmp_path: Path) -> None:
    state: Any = make_state("feedback")
    state.memory[0, -1] = torch.nan
    state.save(tmp_path / "bad.safetensors")
    with pytest.raises(ValueError, match=r"bad.safetensors: 'memory' contains NaN"):
        State.load(tmp_path / "bad.safetensors")


def test_loading_other_files_raises(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="not a readable state"):
        State.load(tmp_path / "text")
    save_file({"weight": torch.zeros(2)}, tmp_path / "model")
    with pytest.raises(ValueError, match="not a saved state of stairwell"):
        State.load(tmp_path / "model")


def test_loading_a_file_with_any_bit_flipped_raises(tmp_path: Path) -> None:
    path = tmp_path / "state"
    make_state("lstm").select([0]).save(path)
    content = path.read_bytes()
    for i in range(len(content)):
        path.write_bytes(content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :])
        with pytest.raises(UserError, match=r"state (is damaged: its contents do not match|is not a|was written by)"):
            State.load(path)


def test_loading_an_older_format_names_both_versions(tmp_path: Path) -> None:
    state = make_state("feedback")
    metadata = {"format": "stairwell.state.2", "spec": json.dumps(state.spec())}
    save_file(dict(state.tensors()), tmp_path / "state", metadata=metadata)
    with pytest.raises(UserError, match=r"another version of stairwell \(stairwell.state.2, this one reads .*make it"):
        State.load(tmp_path / "state")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"type": "Nothing"}, "is not a known type of state"),
        ([], "is not a known type of state"),
        ({"type": "SourceState"}, "is not a known type of state"),
        ({"type": "LSTMState"}, "'hidden' is missing; a LSTMState requires it"),
        ({"type": "FeedbackState", "max_crop": -1}, "'max_crop' must be an integer, 0 or more, not -1"),
        ({"type": "FeedbackState", "max_crop": "2"}, "'max_crop' must be an integer"),
        ({"type": "FeedbackState", "max_crop": None}, "'max_crop' must be an integer, 0 or more, not None"),
    ],
)
def test_loading_a_wrong_spec_raises(spec: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    tensors = dict(make_state("feedback").tensors())
    write_hashed(path, tensors, {"format": FORMAT, "spec": json.dumps(spec)})
    with pytest.raises(UserError, match=f"state: .*{message}") as error:
        State.load(path)
    assert "\n" not in str(error.value)
    write_hashed(path, tensors, {"format": FORMAT})
    with pytest.raises(UserError, match="the metadata contain no state type"):
        State.load(path)


def test_unknown_tensors_and_different_batch_sizes_raise() -> None:
    tensors = dict(make_state("feedback").tensors())
    with pytest.raises(ValueError, match="'more' is not part of a FeedbackState"):
        FeedbackState.from_tensors({**tensors, "more": torch.zeros(3)})
    with pytest.raises(ValueError, match="the batch sizes of its tensors differ"):
        FeedbackState.from_tensors({**tensors, "count": tensors["count"][:2]})
    with pytest.raises(ValueError, match="is a FeedbackState, not a SourceState"):
        SourceState.from_tensors(tensors, make_state("feedback").spec())


WRONG_COUNTS = [
    ("count", -1),
    ("count", -(2**62)),
    ("count", 2**48),
    ("count", 2**62),
    ("croppable", -1),
    ("croppable", 2**62),
]


@pytest.mark.parametrize(("field", "number"), WRONG_COUNTS)
@pytest.mark.parametrize("name", sorted(CORES))
def test_impossible_counts_raise_wherever_a_state_is_read(name: str, field: str, number: int) -> None:
    """Engines use counts as memory indices."""
    max_crop = 0 if name in ("lstm", "deltanet") else 2
    model = LanguageModel(LanguageModelConfig(core=CORES[name].config(**SMALL), inputs=5)).eval()
    tokens = torch.zeros(3, 9, dtype=torch.int64)
    _, state = model(tokens, model.init_state(3, max_crop=max_crop))
    state = replace(state, **{field: getattr(state, field).clone().index_fill(0, torch.tensor([1]), number)})
    for read in (
        lambda: model(tokens, state),
        lambda: model(tokens[:, :1], state),
        lambda: model.core(torch.zeros(3, 9, 4), state),
        lambda: Session(model, state),
        lambda: State.from_tensors(dict(state.tensors()), state.spec()),
    ):
        with pytest.raises(
            ValueError, match=r"the state is damaged: stream 1 has count -?\d+ and croppable -?\d+"
        ) as error:
            read()
        assert str(number) in str(error.value)


@pytest.mark.parametrize("name", sorted(CORES))
def test_wrong_dtypes_and_shapes_raise(name: str) -> None:
    core = build(CORES[name].config(**SMALL))
    x, state = torch.zeros(3, 1, 4), make_state(name)
    for path, tensor in state.tensors():
        if not tensor.numel():
            continue
        changes = [lambda old: old[:2], lambda old: old[..., None], lambda old: old[0]]
        changes += [lambda old, dtype=dtype: old.to(dtype) for dtype in DTYPES if dtype != tensor.dtype]
        for change in changes:
            wrong = state._with_tensors(change(old) if p == path else old for p, old in state.tensors())
            with pytest.raises(ValueError, match=f"'{path}'|batch size"):
                core(x, wrong)


def test_loading_wrong_dtypes_raises(tmp_path: Path) -> None:
    state = make_state("staircase")
    for path, tensor in state.tensors():
        for dtype in DTYPES:
            if dtype == tensor.dtype or (tensor.is_floating_point() and dtype in FLOAT_DTYPES):
                continue  # without a model any floating-point dtype is possible
            tensors = {**dict(state.tensors()), path: tensor.to(dtype)}
            with pytest.raises(UserError, match=f"is damaged: '{path}' is {dtype} of shape .*; expected"):
                State.from_tensors(tensors, state.spec())


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    make_state("feedback").save(path)
    before = path.read_bytes()

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stairwell.tensor_files.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        make_state("lstm").save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("name", sorted(CORES))
def test_reset_changes_only_the_given_streams(name: str) -> None:
    state = make_state(name)
    initial = build(CORES[name].config(**SMALL)).init_state(1)
    for indices in ([1], torch.tensor([False, True, False])):
        reset = state.reset(indices)
        for (_, a), (_, b) in zip(reset.select([1]).tensors(), initial.tensors(), strict=True):
            assert torch.equal(a, b)
        for (_, a), (_, b) in zip(reset.select([0, 2]).tensors(), state.select([0, 2]).tensors(), strict=True):
            assert torch.equal(a, b)


def test_select_reorders_and_repeats_streams() -> None:
    state: Any = make_state("feedback")
    selected = state.select([2, 0, 0])
    assert torch.equal(selected.memory, state.memory[[2, 0, 0]])
    assert torch.equal(state.select(torch.tensor([True, False, True])).count, state.count[[0, 2]])
    with pytest.raises(IndexError, match=r"batch indices must be in 0\.\.2"):
        state.select([3])
    with pytest.raises(ValueError, match="mask of batch elements"):
        state.select(torch.tensor([True]))


def test_a_growing_cache_is_trimmed_to_the_selected_streams() -> None:
    state: Any = make_state("global-cached-staircase")
    assert state.cache.shape[1] == 7
    assert state.select([1]).cache.shape[1] == 3
    assert state.select([1]).nbytes < state.nbytes / 3
    joined = type(state).join([state.select([1]), state.select([0])])
    assert torch.equal(joined.cache, state.select([1, 0]).cache)


def test_nbytes_counts_each_storage_once() -> None:
    state = make_state("feedback")
    whole = sum(tensor.nbytes for _, tensor in state.tensors())
    parts = state.map(lambda tensor: torch.cat([tensor, tensor])[: len(tensor)])
    assert state.map(torch.clone).nbytes == whole and parts.nbytes == 2 * whole
    count = torch.zeros(1, dtype=torch.int64)
    shared = state.map(lambda tensor: tensor.clone() if tensor.is_floating_point() else count.expand(tensor.shape))
    assert shared.nbytes == whole - 2 * state.count.nbytes + count.nbytes


def test_to_keeps_counts_int64() -> None:
    state: Any = make_state("feedback").to(dtype=torch.float64)
    assert (state.memory.dtype, state.count.dtype) == (torch.float64, torch.int64)


def test_to_accepts_device_and_dtype_like_a_tensor() -> None:
    state: Any = make_state("feedback")
    for moved in (state.to(torch.float64), state.to("cpu", torch.float64), state.to(dtype=torch.float64)):
        assert (moved.memory.dtype, moved.count.dtype) == (torch.float64, torch.int64)
    assert_same(state.to("cpu"), state)
    with pytest.raises(TypeError, match=r"a state has a floating-point dtype, not torch.int64"):
        state.to(torch.int64)


def test_a_state_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_state("lstm").count = torch.zeros(3)  # type: ignore[misc]


def test_a_field_without_a_field_type_raises() -> None:
    @dataclass(frozen=True, eq=False)
    class Untyped(CoreState):
        memory: Tensor

    state = Untyped(torch.zeros(1), torch.zeros(1), torch.zeros(1, 2))
    with pytest.raises(TypeError, match=r"Untyped.memory has no field type; write .*field\(metadata=SLOTS\)"):
        state.detach()


def test_a_nested_state_has_paths_and_one_count(tmp_path: Path) -> None:
    state = with_source([2, 4, 1], "staircase", max_crop=2)
    names = [name for name, _ in state.tensors()]
    assert names[:3] == ["decoder.count", "decoder.croppable", "decoder.passes.0"]
    assert names[-2:] == ["source_mask", "source"]
    assert state.count is state.decoder.count
    assert state.croppable is state.decoder.croppable
    assert (state.batch, state.max_crop) == (3, 2)
    assert state.nbytes == state.decoder.nbytes + state.source.nbytes + state.source_mask.nbytes
    state.save(tmp_path / "state")
    with safe_open(tmp_path / "state", framework="pt") as file:
        spec = json.loads(file.metadata()["spec"])
    assert spec == {"type": "SourceState", "decoder": {"type": "StaircaseState", "max_crop": 2}}


def test_nested_states_support_every_operation() -> None:
    state = with_source([2, 4, 1], max_crop=2)
    decoder: Any = state.decoder
    assert state.source_mask.sum(1).tolist() == [2, 4, 1]
    assert_same(state.select([2, 0, 0]).decoder, decoder.select([2, 0, 0]))
    assert torch.equal(state.select([2, 0, 0]).source, state.source[[2, 0, 0]])
    reset, cropped = state.reset([0, 1]), state.crop([2, 1, 0])
    assert_same(reset.decoder, decoder.reset([0, 1]))
    assert_same(cropped.decoder, decoder.crop([2, 1, 0]))
    for changed in (reset, cropped):
        assert torch.equal(changed.source, state.source)
        assert torch.equal(changed.source_mask, state.source_mask)
    wide = state.to(dtype=torch.float64)
    assert wide.source.dtype == wide.select([0]).decoder.memory.dtype == torch.float64  # type: ignore[attr-defined]
    assert (wide.source_mask.dtype, wide.count.dtype) == (torch.bool, torch.int64)
    graph = replace(state, source=state.source.requires_grad_())
    assert graph.select([0]).source.requires_grad
    assert not graph.detach().source.requires_grad
    assert_same(State.from_tensors(dict(state.tensors()), state.spec()), state)


def test_join_pads_masked_positions() -> None:
    """Slots are padded at the oldest end, sources at the end, with a false mask."""
    name = "global-cached-staircase"
    long, short = with_source([4], name), with_source([1, 2], name).select([1])
    joined: Any = SourceState.join([short, long])
    assert joined.source.shape[1] == 4
    assert torch.equal(joined.source[0, :2], short.source[0])
    assert joined.source[0, 2:].abs().sum() == 0
    assert joined.source_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert joined.count.tolist() == [3, 7]
    assert joined.decoder.cache[0, :4].abs().sum() == 0
    assert torch.equal(joined.decoder.cache[0, 4:], short.decoder.cache[0])  # type: ignore[attr-defined]


def test_joining_incompatible_states_raises() -> None:
    with pytest.raises(ValueError, match="at least one state"):
        FeedbackState.join([])
    with pytest.raises(TypeError, match=r"State.join expects a list of states, not one state; use join\(\[a, b\]\)"):
        State.join(make_state("feedback"))  # type: ignore[arg-type]
    assert State.join(make_state("feedback") for _ in range(2)).batch == 6
    with pytest.raises(TypeError, match=r"FeedbackState.join expects states of this class, not a LSTMState"):
        FeedbackState.join([make_state("feedback"), make_state("lstm")])
    with pytest.raises(ValueError, match=r"incompatible states: .*FeedbackState.* and .*LSTMState"):
        State.join([make_state("feedback"), make_state("lstm")])
    with pytest.raises(ValueError, match=r"incompatible states: .*'max_crop': 0.* and .*'max_crop': 1"):
        FeedbackState.join([make_state("feedback"), make_state("feedback", max_crop=1)])
    other = build(FeedbackConfig(**SMALL, memory=5)).init_state(1)
    with pytest.raises(ValueError, match=r"'memory' is \(100, 1, 4\) per stream.*\(5, 1, 4\)"):
        State.join([make_state("feedback"), other])
    with pytest.raises(ValueError, match=r"torch.float32 on cpu in one.*torch.float64 on cpu"):
        FeedbackState.join([make_state("feedback"), make_state("feedback").to(dtype=torch.float64)])
    two, three = (build(CORES["staircase"].config(**SMALL, chunk=2, passes=n)).init_state(1) for n in (2, 3))
    with pytest.raises(ValueError, match=r"incompatible states: only one of them has 'passes.2'"):
        State.join([two, three])
    wider = replace(with_source([2]), source=torch.zeros(1, 2, 6))
    with pytest.raises(ValueError, match=r"'source' is \(2, 4\) per stream.*\(2, 6\)"):
        SourceState.join([with_source([2]), wider])
    for wrong in (with_source([2]), with_source([2], "lstm")):
        with pytest.raises(ValueError, match="incompatible states"):
            SourceState.join([with_source([2], "staircase"), wrong])


def gather(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    state = with_source([4, 3, 2], "global-cached-staircase").select([[1], [0]][rank])
    state = replace(state, source=state.source[:, : 3 + rank], source_mask=state.source_mask[:, : 3 + rank])
    gathered = Distributed(rank, 2).gather_state(state)
    save_file(gathered, f"{folder}/{rank}", metadata={"spec": json.dumps(state.spec())})
    dist.destroy_process_group()


def test_gathering_over_processes_pads_like_join(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(gather, (str(tmp_path),), nprocs=2)  # type: ignore[no-untyped-call]
    whole = with_source([4, 3, 2], "global-cached-staircase").select([1, 0])
    for rank in ("0", "1"):
        with safe_open(tmp_path / rank, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert_same(State.from_tensors(tensors, whole.spec()), whole)


@pytest.mark.parametrize("indices", [[0.7], torch.tensor([0.0, 1.0]), ["a"], None, [[0], [1, 2]]])
def test_indices_that_are_not_integers_raise(indices: Any) -> None:
    for method in (make_state("feedback").select, make_state("feedback").reset):
        with pytest.raises(TypeError, match="batch indices are integers, or one bool per batch element, not"):
            method(indices)


@pytest.mark.parametrize("indices", [[[0, 1]], torch.zeros(2, 2, dtype=torch.int64), 1])
def test_indices_of_another_shape_raise(indices: Any) -> None:
    for method in (make_state("feedback").select, make_state("feedback").reset):
        with pytest.raises(ValueError, match="batch indices must be a list of integers, not of shape"):
            method(indices)


def test_empty_indices_are_valid() -> None:
    assert make_state("global-cached-staircase").select([]).batch == 0
    assert_same(make_state("feedback").reset([]), make_state("feedback"))


def test_wrong_arguments_of_crop_raise() -> None:
    state = make_state("feedback", max_crop=2)
    for wrong in (1.5, [1.0, 1.0, 1.0], True, "two", None):
        with pytest.raises(
            TypeError, match="crop expects an integer number of tokens, or one for each of the 3 streams, not"
        ):
            state.crop(wrong)  # type: ignore[arg-type]
    for shape in ([1, 1], [[1, 1, 1]], torch.ones(4, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"one for each of the 3 streams, not shape"):
            state.crop(shape)  # type: ignore[arg-type]
    assert_same(state.crop(torch.tensor([1, 1, 1], dtype=torch.int32)), state.crop(1))


@pytest.mark.parametrize("arguments", [(1.5,), ("2",), (None,), (2, 0.5), (torch.ones(2),)])
def test_a_batch_size_that_is_not_an_integer_raises(arguments: Any) -> None:
    model = LanguageModel(LanguageModelConfig(core=FeedbackConfig(**SMALL, memory=3), inputs=5))
    with pytest.raises(TypeError, match="batch and max_crop must be integers, not") as error:
        model.core.init_state(*arguments)
    assert "\n" not in str(error.value)
    with pytest.raises(TypeError, match="batch and max_crop must be integers"):
        model.init_state(arguments[0] if len(arguments) == 1 else 2, max_crop=arguments[-1])


@pytest.mark.parametrize("name", ["feedback", "transformer-xl", "cached-staircase"])
def test_another_memory_size_is_not_mistaken_for_max_crop(name: str) -> None:
    key = "passes" if name == "cached-staircase" else "memory"
    small, large = (build(CORES[name].config(**SMALL, heads=2, **{key: size})) for size in (3, 5))
    x = torch.zeros(1, 1, 4)
    with pytest.raises(ValueError, match=r"belongs to another model: its .* with max_crop 0"):
        small(x, large.init_state(1))
    max_crop = 2 * (32 if name == "cached-staircase" else 1)
    with pytest.raises(ValueError, match="another model"):
        large(x, small.init_state(1, max_crop))
    # No operation changes max_crop.
    _, state = small(x, small.init_state(1, max_crop))
    again: State = type(state).join([state.select([0]), state.reset([0]), state.detach().crop(1)])
    again = pytree.tree_map(torch.clone, again.to(dtype=torch.float32))
    assert again.max_crop == max_crop
    assert small(x.expand(3, 1, 4), again)[1].max_crop == max_crop


def test_large_counts_pack_exactly() -> None:
    core = build(FeedbackConfig(**SMALL, memory=3))
    counts = torch.tensor([0, 1, 2**21 - 1, 2**21, 2**24 + 1, 2**40 + 12345, 2**53 + 1, 2**63 - 1])
    for dtype in (torch.float32, torch.float64):
        state = replace(core.init_state(8), count=counts).to(dtype=dtype)
        vector = state.pack()
        assert (vector.dtype, vector.shape) == (dtype, (8, 2 * 3 + 3 * 4))
        assert torch.equal(core.unpack(vector).count, counts)


def test_an_unpacked_state_is_a_copy() -> None:
    core = build(FeedbackConfig(**SMALL, memory=3))
    vector = torch.ones(1, 2 * 3 + 3 * 4)
    state: Any = core.unpack(vector)
    vector.zero_()
    assert state.memory.sum() == 12
    assert state.memory.is_contiguous()


def test_unpack_converts_to_the_dtype_of_the_model() -> None:
    model = LanguageModel(LanguageModelConfig(core=LSTMConfig(**SMALL), inputs=5)).to(torch.bfloat16).eval()
    tokens = torch.randint(5, (2, 3))
    _, state = model(tokens, model.init_state(2))
    with pytest.raises(
        ValueError, match=r"only float32 and float64 states can be packed, not torch.bfloat16; use state.to\("
    ):
        state.pack()
    again = model.unpack(state.to(dtype=torch.float32).pack())
    assert_same(again, state)
    model(tokens, again)


def test_unpacking_a_wrong_vector_raises() -> None:
    core = build(FeedbackConfig(**SMALL, memory=3))
    vector = core.init_state(2, max_crop=1).pack()
    with pytest.raises(ValueError, match="FeedbackState with max_crop 0 packs into 18 numbers per stream, not 22"):
        core.unpack(vector)
    assert core.unpack(vector, max_crop=1).max_crop == 1
    for wrong in (vector[0], vector.half(), vector.long(), vector.tolist()):
        with pytest.raises(TypeError, match=r"a packed state is \(batch, 22\) of float32 or float64, not"):
            core.unpack(wrong, max_crop=1)  # type: ignore[arg-type]
    for number in (0.5, -1.0, 2.0**21, torch.nan):
        vector[1, 0] = number
        with pytest.raises(ValueError, match="the vector's 'count' is not an integer"):
            core.unpack(vector, max_crop=1)


def test_growing_states_need_a_limit_to_pack_and_sources_do_not_pack() -> None:
    with pytest.raises(ValueError, match=r"'cache' grows with the stream; to pack it, .* max_tokens"):
        make_state("global-cached-staircase").pack()
    with pytest.raises(ValueError, match="'source_mask' is static"):
        with_source([2, 1]).pack()
    core = build(GlobalCachedStaircaseConfig(**SMALL, chunk=2, max_tokens=9))
    _, state = core(torch.randn(2, 4, 4), core.init_state(2))
    _, longer = core(torch.randn(2, 5, 4), state)
    assert state.pack().shape == longer.pack().shape == (2, 6 + 8 + 9 * 4)
    assert_same(core.unpack(state.pack()), state)
    assert_same(core.unpack(longer.pack()), longer)


@pytest.mark.parametrize("name", ["feedback", "transformer-xl", "universal", "lstm"])
def test_a_step_with_a_state_can_be_exported(name: str) -> None:
    """The exported step can be applied to its own output state repeatedly."""
    torch.manual_seed(0)
    core = build(CORES[name].config(**SMALL)).eval()
    with torch.no_grad():
        step = torch.export.export(core, (torch.randn(2, 1, 4), core.init_state(2))).module()
        state = exported = core.init_state(2)
        for x in torch.randn(4, 2, 1, 4):
            y, state = core(x, state)
            exported_y, exported = step(x, exported)
            torch.testing.assert_close(exported_y, y)
            assert type(exported) is type(state)
            torch.testing.assert_close(dict(exported.tensors()), dict(state.tensors()))


def test_a_packed_step_can_be_exported(tmp_path: Path) -> None:
    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = build(FeedbackConfig(**SMALL, memory=3))

        def forward(self, x: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
            y, state = self.core(x, self.core.unpack(vector))
            return y, state.pack()

    step, x, vector = Step().eval(), torch.randn(2, 1, 4), torch.zeros(2, 18)
    torch.export.save(torch.export.export(step, (x, vector)), tmp_path / "step.pt2")
    exported = torch.export.load(tmp_path / "step.pt2").module()
    for _ in range(5):
        y, after = step(x, vector)
        exported_y, vector = exported(x, vector)
        torch.testing.assert_close((exported_y, vector), (y, after))


def test_a_step_with_a_nested_state_can_be_exported_and_compiled() -> None:
    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = build(FeedbackConfig(**SMALL, memory=100, cross=True))

        def forward(self, x: Tensor, state: SourceState) -> tuple[Tensor, SourceState]:
            y, decoder = self.core(x, state.decoder, None, state.source, state.source_mask)
            return y, replace(state, decoder=decoder)

    step, x, state = Step().eval(), torch.randn(3, 1, 4), with_source([2, 3, 1])
    expected, after = step(x, state)
    exported = torch.export.export(step, (x, state)).module()
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    for run in (exported, compiled):
        y, actual = run(x, state)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(dict(actual.tensors()), dict(after.tensors()))


@pytest.mark.parametrize("name", sorted(CORES))
def test_torch_func_accepts_states(name: str) -> None:
    torch.manual_seed(0)
    core = build(CORES[name].config(**SMALL)).eval()
    x, before = torch.randn(3, 2, 4), make_state(name)

    def loss(parameters: Any, state: State) -> tuple[Tensor, State]:
        y, after = torch.func.functional_call(core, parameters, (x, state))
        return y.square().sum(), after

    parameters = dict(core.named_parameters())
    gradients, after = torch.func.grad(loss, has_aux=True)(parameters, before)
    total, expected = loss(parameters, before)
    assert_same(after, expected.detach())
    grads = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    for (name, a), b in zip(gradients.items(), grads, strict=True):
        torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b, msg=name)


@pytest.mark.parametrize("memory_composition", ["all", "average", "recurrent", 0, 3])
def test_the_state_of_feedback_is_smaller_by_the_number_of_layers(memory_composition: Any) -> None:
    """Compared with Transformer-XL, in bytes of storage; `recurrent` needs as much as Transformer-XL."""
    options: dict[str, Any] = {"width": 32, "layers": 3, "memory": 50}
    sizes = []
    for config in (TransformerXLConfig(**options), FeedbackConfig(**options, memory_composition=memory_composition)):
        core = build(config)
        with torch.no_grad():
            _, state = core(torch.randn(2, 70, 32), core.init_state(2))
        sizes.append(state.nbytes - state.count.nbytes - state.croppable.nbytes)
    assert sizes[0] == 2 * 50 * 3 * 32 * 4
    assert sizes[0] / sizes[1] == (1 if memory_composition == "recurrent" else 3)


def test_cropping_more_than_max_crop_raises() -> None:
    state: Any = make_state("feedback", max_crop=2)
    memory = state.memory.clone()
    with pytest.raises(ValueError, match=r"cannot crop 3 tokens of stream 0: croppable is 2 .*max_crop"):
        state.crop(3)
    with pytest.raises(ValueError, match="0 or more"):
        state.crop(-1)
    # Cropped tokens no longer count as croppable.
    with pytest.raises(ValueError, match="croppable is 1"):
        state.crop(1).crop(2)
    assert torch.equal(state.memory, memory)


def test_crop_is_limited_by_the_start_of_a_stream() -> None:
    core = build(FeedbackConfig(**SMALL, memory=5))
    start = torch.tensor([[False, False, False, True]])
    with torch.no_grad():
        _, state = core(torch.randn(1, 4, 4), core.init_state(1, max_crop=3), start)
    with pytest.raises(ValueError, match="croppable is 1"):
        state.crop(2)
    cropped = state.crop(1)
    assert isinstance(cropped, FeedbackState)
    assert cropped.count.item() == 0
    assert cropped.memory.abs().sum() == 0


def test_lstm_does_not_support_crop() -> None:
    with pytest.raises(ValueError, match="LSTMState does not support crop"):
        make_state("lstm").crop(1)
    with pytest.raises(ValueError, match="use max_crop=0"):
        build(LSTMConfig(**SMALL)).init_state(2, max_crop=1)


def test_a_stream_longer_than_max_tokens_raises() -> None:
    core = build(GlobalCachedStaircaseConfig(**SMALL, chunk=2, max_tokens=6))
    _, state = core(torch.randn(1, 6, 4), core.init_state(1))
    with pytest.raises(ValueError, match="7 tokens since its start, more than max_tokens=6"):
        core(torch.randn(1, 1, 4), state)
    core(torch.randn(1, 1, 4), state, torch.tensor([[True]]))


def test_croppable_grows_with_every_token() -> None:
    core = build(FeedbackConfig(width=8, heads=2, layers=2, memory=3))
    _, state = core(torch.randn(1, 2, 8), core.init_state(1, max_crop=8))
    _, state = core(torch.randn(1, 3, 8), state)
    assert int(state.croppable) == 5
    state.crop(5)
    with pytest.raises(ValueError, match="crop"):
        state.crop(6)
