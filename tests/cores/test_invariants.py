"""Every invariant for every core, on random small and awkward shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stairwell.cores import CORES
from stairwell.cores.core import TransformerCore
from stairwell.cores.feedback import FeedbackConfig
from stairwell.cores.staircase import CachedStaircaseConfig
from tests import invariants

pytestmark = pytest.mark.quick

NAMES = sorted(CORES)
TRANSFORMERS = [name for name in NAMES if issubclass(CORES[name].core, TransformerCore)]
EXAMPLES = settings(max_examples=15, deadline=None, derandomize=True)
POSITIONS: list[dict[str, Any]] = [  # half of them learned; fewer and more embeddings than distances
    *[{}] * 3,
    {"positions": "none"},
    {"positions": "clamped", "position_embeddings": 2},
    {"positions": "random", "position_embeddings": 3},
    {"positions": "random", "position_embeddings": 50},
]
FEW_EXAMPLES = settings(max_examples=6, deadline=None, derandomize=True)  # for examples with many invariants


@st.composite
def configs(draw: Any, name: str, **fixed: Any) -> Any:
    """Return a config of a core with random small sizes and options; options in `fixed` are not random."""
    config = CORES[name].config
    heads = draw(st.integers(1, 2))
    options: dict[str, Any] = {
        "width": draw(st.sampled_from([4, 6])),
        "heads": heads,
        "head_width": draw(st.sampled_from([None, 1, 5])),
        "inner": 7,
        "layers": draw(st.integers(1, 3)),
        "norm": draw(st.sampled_from(["pre", "post"])),
        "adaptive_span": draw(st.booleans()),
        "span_ramp": draw(st.integers(1, 4)),
        "cross": draw(st.booleans()),
        **draw(st.sampled_from(POSITIONS)),
    }
    fields = config.__dataclass_fields__
    if "memory" in fields:
        options["memory"] = draw(st.sampled_from([1, 2, 3, 5, 40]))  # 40: longer than any stream here
        options["attend_to_current"] = draw(st.booleans())
    if name == "feedback":
        options["memory_composition"] = draw(st.sampled_from(["all", "average", "recurrent", 0, options["layers"]]))
        options["share_kv"] = draw(st.booleans())
    if name == "deltanet":
        options["products"] = draw(st.integers(1, 3))
        options["negative_eigenvalues"] = draw(st.booleans())
        options["gated"] = draw(st.booleans())
    if name == "universal":
        options["passes"] = draw(st.integers(1, 3))
    if name in ("staircase", "cached-staircase", "global-cached-staircase"):
        options["chunk"] = draw(st.sampled_from([1, 2, 3, 20]))  # 20: longer than any stream here
    if name in ("staircase", "cached-staircase"):
        options["passes"] = draw(st.integers(1, 4))
    if name == "cached-staircase":
        options["compute"] = draw(st.integers(0, options["passes"]))
    if name == "global-cached-staircase":
        options["compute"] = draw(st.integers(0, 3))
        options["distances"] = draw(st.sampled_from([2, 64]))  # 2: most distances share the last
    if name == "memory-network":
        options["passes"] = draw(st.integers(1, 6))
    options |= fixed
    return config(**{option: value for option, value in options.items() if option in fields})


@st.composite
def cases(draw: Any, name: str, tokens: Any = None, max_crop: int = 0, **fixed: Any) -> invariants.Case:
    config = draw(configs(name, **fixed))
    return invariants.make_case(
        config,
        B=draw(st.integers(1, 3)),
        T=draw(tokens or st.sampled_from([1, 2, 3, 5, 8, 11])),
        seed=draw(st.integers(0, 2**20)),
        starts=draw(st.sampled_from([0.0, 0.15, 0.5])),
        warm=draw(st.sampled_from([0, 1, 4, 9])),
        max_crop=max_crop,
    )


@pytest.mark.parametrize("name", NAMES)
def test_any_split_gives_the_same_outputs_state_and_gradients(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name), cuts=st.lists(st.integers(1, 10), max_size=4))
    def check(case: invariants.Case, cuts: list[int]) -> None:
        invariants.split(case, [cut for cut in cuts if cut < case.x.shape[1]])

    check()


@pytest.mark.parametrize("name", NAMES)
def test_a_later_token_changes_nothing_earlier(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name), t=st.integers(0, 10))
    def check(case: invariants.Case, t: int) -> None:
        invariants.causal(case, t % case.x.shape[1])

    check()


@pytest.mark.parametrize("name", NAMES)
def test_batch_elements_are_independent(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name), order=st.lists(st.integers(0, 2), min_size=1, max_size=5))
    def check(case: invariants.Case, order: list[int]) -> None:
        invariants.independent(case, [b % case.x.shape[0] for b in order])

    check()


@pytest.mark.parametrize("name", NAMES)
def test_a_start_equals_an_initial_state(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name))
    def check(case: invariants.Case) -> None:
        invariants.start(case)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_not_modified(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name))
    def check(case: invariants.Case) -> None:
        invariants.pure(case)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_gradients_stop_at_a_detached_state_and_nowhere_else(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name))
    def check(case: invariants.Case) -> None:
        invariants.detach(case)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_decoding_step_by_step_equals_teacher_forcing(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name))
    def check(case: invariants.Case) -> None:
        invariants.decode(case)

    check()


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_slots_beyond_the_window_have_no_effect(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name, max_crop=3))
    def check(case: invariants.Case) -> None:
        invariants.window(case)

    check()


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_crop_equals_never_having_read(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name, max_crop=3), crop=st.lists(st.integers(0, 3), min_size=3, max_size=3))
    def check(case: invariants.Case, crop: list[int]) -> None:
        invariants.crop(case, crop[: case.x.shape[0]])

    check()


@pytest.mark.parametrize("name", NAMES)
def test_states_can_be_packed_and_are_pytrees(name: str) -> None:
    max_crop = 0 if name in ("lstm", "deltanet") else 2

    @EXAMPLES
    @given(case=cases(name, max_crop=max_crop, max_tokens=30))
    def check(case: invariants.Case) -> None:
        invariants.packed(case)
        invariants.tree(case)

    check()


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_states_with_a_source_satisfy_every_invariant(name: str) -> None:
    @FEW_EXAMPLES
    @given(
        case=cases(name, max_crop=3, cross=True),
        number=st.integers(0, 10),
        lengths=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    )
    def check(case: invariants.Case, number: int, lengths: list[int]) -> None:
        nested = invariants.with_source_in_state(case)
        B, T, _ = case.x.shape
        invariants.split(nested, [number % T])
        invariants.independent(nested, [number % B, 0, B - 1])
        invariants.start(nested)
        invariants.pure(nested)
        invariants.detach(nested)
        invariants.decode(nested)
        invariants.window(nested)
        invariants.crop(nested, [number % 4] * B)
        invariants.tree(nested)
        invariants.sources(nested, lengths[:B])

    check()


@pytest.mark.parametrize("share_kv", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("memory_composition", ["all", "average", "recurrent", 0, 1, 2])
def test_every_memory_composition_satisfies_every_invariant(memory_composition: Any, norm: Any, share_kv: bool) -> None:
    """Random cases may miss a combination."""
    config = FeedbackConfig(
        width=4,
        heads=2,
        layers=2,
        inner=5,
        memory=3,
        memory_composition=memory_composition,
        norm=norm,
        share_kv=share_kv,
    )
    check_every_invariant(config)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize(("passes", "compute"), [(n, m) for n in range(1, 4) for m in range(n + 1)])
def test_every_shape_of_staircase_keeps_every_law(passes: int, compute: int, chunk: int, norm: Any) -> None:
    check_every_invariant(
        CachedStaircaseConfig(
            width=4, heads=2, layers=2, inner=5, chunk=chunk, passes=passes, compute=compute, norm=norm
        )
    )


def check_every_invariant(config: Any) -> None:
    case = invariants.make_case(config, B=2, T=7, seed=1, starts=0.2, warm=4, max_crop=2)
    invariants.split(case, [1, 4])
    invariants.causal(case, 3)
    invariants.independent(case, [1, 0, 1])
    invariants.start(case)
    invariants.pure(case)
    invariants.detach(case)
    invariants.decode(case)
    invariants.window(case)
    invariants.crop(case, [2, 1])
    invariants.packed(case)
    invariants.tree(case)


@pytest.mark.parametrize("attend_to_current", [False, True])
@pytest.mark.parametrize("name", ["transformer-xl", "universal"])
def test_a_token_farther_back_than_depth_times_memory_has_no_effect(name: str, attend_to_current: bool) -> None:
    config = CORES[name].config(width=4, heads=2, layers=2, memory=3, attend_to_current=attend_to_current)
    depth = 2 * getattr(config, "passes", 1)
    invariants.receptive_field(invariants.make_case(config, B=2, T=depth * 3 + 4, starts=0, warm=0), depth, S=3)


@pytest.mark.parametrize("name", ["feedback", "staircase", "cached-staircase", "multi-vector-rnn"])
def test_a_recurrent_core_remembers_beyond_its_window(name: str) -> None:
    """A token far outside the window still has an effect."""
    small = {"memory": 2} if name == "feedback" else {"chunk": 2, "passes": 2} if name != "multi-vector-rnn" else {}
    case = invariants.make_case(CORES[name].config(width=4, heads=2, layers=2, **small), B=1, T=30, starts=0, warm=0)
    x = case.x.clone().requires_grad_()
    y, _ = case.run(x, case.core.init_state(1), None)
    (grad,) = torch.autograd.grad(y[:, -1].sum(), x)
    assert grad[:, 0].abs().sum() > 0
