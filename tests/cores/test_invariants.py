"""Every law, for every core, on drawn shapes: small and awkward on purpose."""

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

NAMES = sorted(CORES)
TRANSFORMERS = [name for name in NAMES if issubclass(CORES[name].core, TransformerCore)]
EXAMPLES = settings(max_examples=15, deadline=None, derandomize=True)
POSITIONS: list[dict[str, Any]] = [  # as often learned as not; fewer vectors than distances, and more
    *[{}] * 3,
    {"positions": "none"},
    {"positions": "clamped", "position_vectors": 2},
    {"positions": "random", "position_vectors": 3},
    {"positions": "random", "position_vectors": 50},
]
FEW = settings(max_examples=6, deadline=None, derandomize=True)  # where an example runs many laws


@st.composite
def configs(draw: Any, name: str, **fixed: Any) -> Any:
    """A config of a core: every option that changes the maths, small sizes; what is `fixed` is not drawn."""
    kind = CORES[name].config
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
    fields = kind.__dataclass_fields__
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
    return kind(**{option: value for option, value in options.items() if option in fields})


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
    def law(case: invariants.Case, cuts: list[int]) -> None:
        invariants.split(case, [cut for cut in cuts if cut < case.x.shape[1]])

    law()


@pytest.mark.parametrize("name", NAMES)
def test_a_later_token_changes_nothing_earlier(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name), place=st.integers(0, 10))
    def law(case: invariants.Case, place: int) -> None:
        invariants.causal(case, place % case.x.shape[1])

    law()


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_know_each_other(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name), order=st.lists(st.integers(0, 2), min_size=1, max_size=5))
    def law(case: invariants.Case, order: list[int]) -> None:
        invariants.rows(case, [row % case.x.shape[0] for row in order])

    law()


@pytest.mark.parametrize("name", NAMES)
def test_a_start_equals_a_fresh_state(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name))
    def law(case: invariants.Case) -> None:
        invariants.start(case)

    law()


@pytest.mark.parametrize("name", NAMES)
def test_a_call_changes_nothing_it_is_given(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name))
    def law(case: invariants.Case) -> None:
        invariants.pure(case)

    law()


@pytest.mark.parametrize("name", NAMES)
def test_gradients_stop_at_a_detached_state_and_nowhere_else(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name))
    def law(case: invariants.Case) -> None:
        invariants.detach(case)

    law()


@pytest.mark.parametrize("name", NAMES)
def test_decoding_step_by_step_equals_teacher_forcing(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name))
    def law(case: invariants.Case) -> None:
        invariants.decode(case)

    law()


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_slack_is_never_read(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name, max_crop=3))
    def law(case: invariants.Case) -> None:
        invariants.window(case)

    law()


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_crop_equals_never_having_seen(name: str) -> None:
    @EXAMPLES
    @given(case=cases(name, max_crop=3), back=st.lists(st.integers(0, 3), min_size=3, max_size=3))
    def law(case: invariants.Case, back: list[int]) -> None:
        invariants.crop(case, back[: case.x.shape[0]])

    law()


@pytest.mark.parametrize("name", NAMES)
def test_a_state_survives_as_one_vector_a_row_and_as_a_tree(name: str) -> None:
    max_crop = 0 if name in ("lstm", "deltanet") else 2

    @EXAMPLES
    @given(case=cases(name, max_crop=max_crop, max_tokens=30))
    def law(case: invariants.Case) -> None:
        invariants.packed(case)
        invariants.tree(case)

    law()


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_state_that_holds_its_source_keeps_every_law(name: str) -> None:
    @FEW
    @given(
        case=cases(name, max_crop=3, cross=True),
        place=st.integers(0, 10),
        lengths=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    )
    def law(case: invariants.Case, place: int, lengths: list[int]) -> None:
        nested = invariants.with_source_in_state(case)
        B, T, _ = case.x.shape
        invariants.split(nested, [place % T])
        invariants.rows(nested, [place % B, 0, B - 1])
        invariants.start(nested)
        invariants.pure(nested)
        invariants.detach(nested)
        invariants.decode(nested)
        invariants.window(nested)
        invariants.crop(nested, [place % 4] * B)
        invariants.tree(nested)
        invariants.sources(nested, lengths[:B])

    law()


@pytest.mark.parametrize("share_kv", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("memory_composition", ["all", "average", "recurrent", 0, 1, 2])
def test_every_make_up_of_feedback_keeps_every_law(memory_composition: Any, norm: Any, share_kv: bool) -> None:
    """The drawn cases may miss a combination; here is each one."""
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
    keep_every_law(config)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize(("passes", "compute"), [(n, m) for n in range(1, 4) for m in range(n + 1)])
def test_every_shape_of_staircase_keeps_every_law(passes: int, compute: int, chunk: int, norm: Any) -> None:
    keep_every_law(
        CachedStaircaseConfig(
            width=4, heads=2, layers=2, inner=5, chunk=chunk, passes=passes, compute=compute, norm=norm
        )
    )


def keep_every_law(config: Any) -> None:
    case = invariants.make_case(config, B=2, T=7, seed=1, starts=0.2, warm=4, max_crop=2)
    invariants.split(case, [1, 4])
    invariants.causal(case, 3)
    invariants.rows(case, [1, 0, 1])
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
def test_a_token_older_than_depth_times_memory_is_forgotten(name: str, attend_to_current: bool) -> None:
    config = CORES[name].config(width=4, heads=2, layers=2, memory=3, attend_to_current=attend_to_current)
    depth = 2 * getattr(config, "passes", 1)
    invariants.forgets(invariants.make_case(config, B=2, T=depth * 3 + 4, starts=0, warm=0), depth, S=3)


@pytest.mark.parametrize("name", ["feedback", "staircase", "cached-staircase", "multi-vector-rnn"])
def test_a_recurrent_core_remembers_beyond_its_window(name: str) -> None:
    """What Transformers cannot: a token far outside the memory still matters."""
    small = {"memory": 2} if name == "feedback" else {"chunk": 2, "passes": 2} if name != "multi-vector-rnn" else {}
    case = invariants.make_case(CORES[name].config(width=4, heads=2, layers=2, **small), B=1, T=30, starts=0, warm=0)
    x = case.x.clone().requires_grad_()
    y, _ = case.run(x, case.core.init_state(1), None)
    (grad,) = torch.autograd.grad(y[:, -1].sum(), x)
    assert grad[:, 0].abs().sum() > 0
