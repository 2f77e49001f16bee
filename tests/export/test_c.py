"""Exported C files compile without warnings and compute what PyTorch computes, for every core and option."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stairwell import configs
from stairwell.cores import CORES, config_type
from stairwell.decode.weights import quantize
from stairwell.errors import UserError
from stairwell.export.c import export_c
from stairwell.export.c.export import describe
from stairwell.export.c.tokens import names_of
from stairwell.models import LanguageModel, LanguageModelConfig
from stairwell.rl.distributions import mask_policy
from stairwell.rl.evaluation import iterate_transitions
from stairwell.rl.flatten import ACTION_MASK
from stairwell.rl.spaces import Box, Dict, Discrete, MultiDiscrete
from stairwell.runs.load import load
from stairwell.tasks.labeled import LabeledVocabulary
from stairwell.text import BPE, Bytes, Characters
from tests.export.c_library import COMPILERS, AgentLibrary, TokenLibrary, compile_c
from tests.export.test_engine import CASES, Case
from tests.invariants import scramble
from tests.rl.test_agent import EVERYTHING, frame, make_agent, random_inputs, small_core

pytestmark = pytest.mark.skipif(not COMPILERS, reason="no C compiler: install gcc or clang")

# LayerNorm over fewer numbers amplifies the rounding of float32, in which C computes, beyond 1e-5.
WIDTH = 16
SUPPORTED = [
    replace(case, core=replace(case.core, width=max(case.core.width, WIDTH)))
    for case in CASES
    if case.name != "global-cached-staircase"
]
each_case = pytest.mark.parametrize("case", SUPPORTED, ids=[case.description for case in SUPPORTED])


@each_case
def test_c_gives_the_logits_of_pytorch(case: Case, tmp_path: Path) -> None:
    outputs, logits = TokenLibrary(case.model, tmp_path).run(case.tokens[0], case.start[0])
    torch.testing.assert_close(logits, case.expected[0], rtol=0, atol=1e-5)
    assert torch.equal(outputs, logits.argmax(-1))


def test_every_core_is_tested() -> None:
    assert {case.name for case in SUPPORTED} == set(CORES) - {"global-cached-staircase"}


def make_model(name: str = "feedback", tied: bool = False, **options: Any) -> LanguageModel:
    sizes = {"width": 16, "heads": 2, "layers": 2, "inner": 5, "memory": 4, "chunk": 3, "passes": 2, **options}
    config = config_type(name)
    core = config(**{key: value for key, value in sizes.items() if key in configs.field_types(config)})
    torch.manual_seed(0)
    return scramble(LanguageModel(LanguageModelConfig(core=core, inputs=5, tied=tied), "reference")).eval()  # type: ignore


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["feedback", "cached-staircase"])
@torch.no_grad()
def test_int8_gives_the_logits_of_rounded_parameters(name: str, tied: bool, tmp_path: Path) -> None:
    model, tokens = make_model(name, tied), torch.randint(5, (30,))
    library = TokenLibrary(model, tmp_path, weights="int8")
    exact, _ = model(tokens[None], model.init_state(1))
    quantize(model, "int8")
    expected, _ = model(tokens[None], model.init_state(1))
    _, logits = library.run(tokens)
    torch.testing.assert_close(logits, expected[0], rtol=0, atol=1e-5)
    assert (logits - exact[0]).abs().max() > 1e-4
    assert library.c_model.parameter_bytes < sum(p.numel() for p in model.parameters()) * 2


def test_streams_do_not_share_anything(tmp_path: Path) -> None:
    library = TokenLibrary(make_model("staircase"), tmp_path)
    streams = torch.randint(5, (3, 20))
    alone = [library.run(tokens)[1] for tokens in streams]
    states = [library.new_state() for _ in streams]
    for t in range(20):
        for tokens, state, expected in zip(streams, states, alone):
            assert torch.equal(library.step(state, int(tokens[t]))[1], expected[t])


def test_a_token_out_of_range_changes_nothing(tmp_path: Path) -> None:
    library = TokenLibrary(make_model(), tmp_path)
    state = library.new_state()
    library.step(state, 3)
    before = bytes(state)
    for token in (-1, 5, 2**31 - 1):
        output, logits = library.step(state, token)
        assert output == -1 and bytes(state) == before and logits.isnan().all()


def test_a_learned_span_shortens_the_state(tmp_path: Path) -> None:
    model = make_model(memory=500, adaptive_span=True, span_ramp=2)
    with torch.no_grad():
        for span in model.core.spans():
            span.ratio.fill_(3 / 500)
    library, tokens = TokenLibrary(model, tmp_path), torch.randint(5, (40,))
    assert library.c_model.state_bytes < 6 * 2 * 16 * 4
    expected, _ = model(tokens[None], model.init_state(1))
    torch.testing.assert_close(library.run(tokens)[1], expected[0].detach(), rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_shipped_tracker_follows_s5_and_pytorch(tmp_path: Path) -> None:
    model, task = load("s5-feedback", "cpu")
    library, tokens = TokenLibrary(model, tmp_path, task), torch.randint(2, (3000,))
    labels = task.train.labels(tokens[None].numpy().astype(np.int16), None)[0][0]
    outputs, logits = library.run(tokens)
    assert np.array_equal(outputs.numpy(), labels)
    expected, _ = model(tokens[None], model.init_state(1))
    torch.testing.assert_close(logits.softmax(-1), expected[0].softmax(-1), rtol=0, atol=1e-5)
    # Logits are as large as 22, and PyTorch's float32 differs from its float64 by more than 1e-5.
    largest = float(expected.abs().max())
    torch.testing.assert_close(logits, expected[0], rtol=0, atol=1e-6 * largest)


@torch.no_grad()
def test_the_shipped_text_model_equals_pytorch(tmp_path: Path) -> None:
    model, task = load("shakespeare-feedback", "cpu")
    library = TokenLibrary(model, tmp_path, task)
    tokens = torch.from_numpy(task.vocabulary.encode("ROMEO:\nWhat say you to the letters of the king?\n" * 22))[:1000]
    expected, _ = model(tokens[None], model.init_state(1))
    _, logits = library.run(tokens)
    torch.testing.assert_close(logits.log_softmax(-1), expected[0].log_softmax(-1), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["corridor-feedback", "taxi-feedback"])
@torch.no_grad()
def test_the_shipped_agent_takes_the_same_actions(name: str, tmp_path: Path) -> None:
    agent, task = load(name, "cpu")
    library = AgentLibrary(agent, tmp_path, task)
    state = library.new_state()
    env = task.make_env(range(1), 0)
    for transition in islice(iterate_transitions(agent, env, seed=0, deterministic=True), 1000):
        if transition.start[0]:
            library.functions.model_init(state)
        result, action, output = library.step(state, transition.inputs)
        assert result == 0 and action == transition.action[0].tolist()
        torch.testing.assert_close(output.policy, transition.output.policy[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(output.value, transition.output.value[0] * agent.reward_scale, rtol=0, atol=1e-5)


IMAGES = Dict((("large", Box((3, 20, 12), 0, 255, "uint8")), ("small", Box((5, 6, 4), (0.0,) * 120, (1.0,) * 120))))
AGENTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "everything": (EVERYTHING, MultiDiscrete((2, 4)), {"last_action": True, "last_reward": True}),
    "images": (IMAGES, Discrete(3), {"start_embedding": False}),
    "last_reward": (Discrete(4), Discrete(2), {"last_reward": True, "start_embedding": False}),
    "box": (Box((3,), (-1.0, -2.0, -9e9), (1.0, 5.0, 9e9)), Discrete(3), {}),
}


@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("name", AGENTS)
@torch.no_grad()
def test_c_gives_the_output_of_an_agent(name: str, weights: Any, tmp_path: Path) -> None:
    observations, actions, options = AGENTS[name]
    agent = make_agent(replace(small_core("feedback"), width=16), observations, actions, **options).float()
    if agent.has_discrete_observations:
        statistics = random_inputs(agent, 50, 1, seed=5).observation
        agent.update_observation_statistics({path: values[:, 0] for path, values in statistics.items()})
    agent.return_count.fill_(9)
    agent.return_variance.fill_(4)
    library = AgentLibrary(agent, tmp_path, weights=weights)
    quantize(agent, weights)
    inputs = random_inputs(agent, 1, 30).map(lambda values: values.float() if values.is_floating_point() else values)
    expected, _ = agent(inputs, agent.init_state(1))
    allowed = torch.rand(expected.policy.shape[-1], generator=torch.Generator().manual_seed(0)) < 0.5
    allowed[[0, -1]] = True
    state = library.new_state()
    for t in range(30):
        one, policy = frame(inputs, t), expected.policy[0, t]
        if t % 2:  # in every second frame, some actions are not allowed
            one.observation[ACTION_MASK], policy = allowed, mask_policy(policy, allowed)
        result, action, output = library.step(state, one)
        assert result == 0 and action == agent.action_dist.mode(policy).tolist()
        torch.testing.assert_close(output.policy, policy, rtol=0, atol=1e-5)
        torch.testing.assert_close(output.value, expected.value[0, t] * agent.reward_scale, rtol=0, atol=1e-5)


def test_an_integer_out_of_range_changes_nothing(tmp_path: Path) -> None:
    agent = make_agent(small_core("feedback"), MultiDiscrete((2, 3)), Discrete(2), last_action=True).float()
    library = AgentLibrary(agent, tmp_path)
    state, inputs = library.new_state(), agent.zero_inputs(1, 1)
    assert library.step(state, inputs)[0] == 0
    before = bytes(state)
    for bad in (torch.tensor([0, 3]), torch.tensor([-1, 0])):
        assert library.step(state, inputs._replace(observation={"observation": bad}))[0] == -1
    assert library.step(state, inputs._replace(last_action=torch.tensor([2])))[0] == -1
    assert bytes(state) == before


def exported(folder: Path, model: Any, **options: Any) -> str:
    export_c(model, folder / "model.c", **options)
    return (folder / "model.h").read_text() + (folder / "model.c").read_text()


EVERY_TEMPLATE = {
    **{name: lambda name=name: make_model(name) for name in ("feedback", "staircase", "lstm", "deltanet")},
    "span": lambda: make_model("cached-staircase", adaptive_span=True, norm="post", passes=3, compute=1),
    "agent": lambda: make_agent(small_core("lstm"), EVERYTHING, Discrete(3)).float(),
}
ARM = ("arm-linux-gnueabihf-gcc", "arm-none-eabi-gcc")


@pytest.mark.parametrize("compiler", ["gcc", "clang", *ARM])
@pytest.mark.parametrize("name", EVERY_TEMPLATE)
def test_there_are_no_warnings(name: str, compiler: str, tmp_path: Path) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    exported(tmp_path, EVERY_TEMPLATE[name]())
    for level in ("-O0", "-O3"):
        compile_c(compiler, level, "-Wshadow", "-c", tmp_path / "model.c", "-o", tmp_path / "model.o")


def test_the_header_can_be_included_in_cpp(tmp_path: Path) -> None:
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    exported(tmp_path, make_model())
    (tmp_path / "main.cpp").write_text('#include "model.h"\nint main() { return sizeof(model_state) == 0; }\n')
    compile_c("g++", "-c", tmp_path / "main.cpp", "-o", tmp_path / "main.o", flags=("-Wall", "-pedantic", "-Werror"))


def test_names_start_with_the_prefix_and_nothing_else_is_visible(tmp_path: Path) -> None:
    text = exported(tmp_path, make_model(), name="walk_2")
    assert "#define WALK_2_STATE_BYTES" in text and "walk_2_state state;" in text
    compile_c(COMPILERS[0], "-c", tmp_path / "model.c", "-o", tmp_path / "model.o")
    listed = subprocess.run(["nm", "--defined-only", "--extern-only", tmp_path / "model.o"], capture_output=True)
    symbols = {line.split()[-1] for line in listed.stdout.decode().splitlines()}
    assert symbols == {"walk_2_init", "walk_2_step", "walk_2_input_names", "walk_2_output_names"}


def test_only_math_h_is_included(tmp_path: Path) -> None:
    text = exported(tmp_path, make_model())
    assert re.findall(r"#include (\S+)", text) == ["<math.h>", '"model.h"']
    assert not re.search(r"\b(malloc|calloc|alloca|memcpy|memset|printf)\b", text)


@pytest.mark.parametrize("name", ["characters", "bytes", "bpe"])
def test_the_names_of_tokens_are_their_bytes(name: str, tmp_path: Path) -> None:
    vocabulary: Any = {
        "characters": lambda: Characters('\n "/\\?Aé%'),
        "bytes": Bytes,
        "bpe": lambda: BPE.build(["the tea the tea"] * 9, 260),
    }[name]()
    config = LanguageModelConfig(core=make_model().core.config, inputs=vocabulary.size)
    exported(tmp_path, LanguageModel(config), task=vocabulary)
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "model.h"\n'
        "int main(void) { for (int i = 0; i < MODEL_INPUTS; i++) puts(model_output_names[i]); return 0; }\n"
    )
    compile_c(COMPILERS[0], tmp_path / "main.c", tmp_path / "model.c", "-o", tmp_path / "main", "-lm")
    printed = subprocess.run([tmp_path / "main"], capture_output=True, check=True).stdout
    if name == "characters":
        tokens = [character.encode() for character in vocabulary.tokens]
    else:
        tokens = [vocabulary.token_bytes(token) for token in range(vocabulary.size)]
    # A string of C ends at the byte 0.
    assert printed == b"".join(token.rstrip(b"\0") + b"\n" for token in tokens)


def test_names_of_labels_are_those_of_the_vocabulary_also_if_there_are_as_many_tokens() -> None:
    model = LanguageModel(LanguageModelConfig(core=make_model().core.config, inputs=2, outputs=2))
    names = names_of(model, LabeledVocabulary(("go", "stop"), ("here", "there")))
    assert (names.inputs, names.outputs) == ([b"go", b"stop"], [b"here", b"there"])


def test_a_description_cannot_end_the_comment() -> None:
    class Task:
        def describe(self) -> str:
            return "*/ int x; \\\n é"

    assert describe(make_model(), Task())[-1].endswith("* / int x; / ?")


BAD_NAMES = ["", "9", "a b", "int", "é", "_x"]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (lambda: make_model("global-cached-staircase"), {}, "global-cached-staircase grows with the stream"),
        (lambda: make_model("lstm"), {"weights": "int8"}, "weights int8 requires a transformer core, not lstm"),
        (make_model, {"weights": "bfloat16"}, "float32 or int8"),
        (lambda: make_agent(small_core("lstm"), Discrete(2), Box((1,), -1.0, 1.0)), {}, "discrete actions"),
        (lambda: LanguageModel(replace(make_model().config, adaptive=(2,))), {}, "adaptive"),
        (lambda: torch.nn.Linear(2, 2), {}, "not a Linear"),
        *((make_model, {"name": name}, "cannot start the names") for name in BAD_NAMES),
    ],
)
def test_what_is_not_supported_is_one_line(model: Any, options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        export_c(model(), tmp_path / "model.c", **options)
    assert not list(tmp_path.iterdir())


def test_nan_is_an_error(tmp_path: Path) -> None:
    model = make_model()
    with torch.no_grad():
        model.core.layers[1].attention.query.weight[0, 0] = torch.nan
    with pytest.raises(UserError, match="NaN or infinity"):
        export_c(model, tmp_path / "model.c")


def test_only_own_files_are_replaced(tmp_path: Path) -> None:
    exported(tmp_path, make_model())
    exported(tmp_path, make_model("staircase"))
    (tmp_path / "model.h").write_text("int mine;")
    with pytest.raises(UserError, match="is not a C file of stairwell"):
        export_c(make_model(), tmp_path / "model.c")
    with pytest.raises(UserError, match=r"does not end in \.c"):
        export_c(make_model(), tmp_path / "model.txt")
    assert (tmp_path / "model.h").read_text() == "int mine;"


def test_exporting_does_not_change_the_model(tmp_path: Path) -> None:
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    export_c(model, tmp_path / "model.c", weights="int8")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


ROOT = Path(__file__).parents[2]


def test_the_program_of_the_docs_prints_labels(tmp_path: Path) -> None:
    page = (ROOT / "docs/export.md").read_text()
    program, _ = (block for block in re.findall(r"```c\n(.*?)```", page, re.DOTALL) if "int main" in block)
    model, task = load("s5-feedback", "cpu")
    export_c(model, tmp_path / "s5.c", task)
    (tmp_path / "main.c").write_text(program)
    compile_c(COMPILERS[0], "-O2", tmp_path / "main.c", tmp_path / "s5.c", "-o", tmp_path / "s5", "-lm")
    tokens = np.random.default_rng(0).integers(0, 2, (1, 100)).astype(np.int16)
    text = " ".join(map(str, tokens[0]))
    printed = subprocess.run([tmp_path / "s5"], input=text, capture_output=True, text=True, check=True).stdout
    _, names = task.names()
    assert printed.split() == [names[label] for label in task.train.labels(tokens, None)[0][0]]
    result = subprocess.run([tmp_path / "s5"], input="7", capture_output=True, text=True)
    assert result.returncode == 1 and "token 7 is out of range" in result.stderr


def test_the_program_of_the_docs_runs_an_agent(tmp_path: Path) -> None:
    page = (ROOT / "docs/export.md").read_text()
    _, program = (block for block in re.findall(r"```c\n(.*?)```", page, re.DOTALL) if "int main" in block)
    agent, task = load("corridor-feedback", "cpu")
    export_c(agent, tmp_path / "corridor.c", task)
    (tmp_path / "main.c").write_text(program)
    sources = (tmp_path / "main.c", tmp_path / "corridor.c")
    compile_c(COMPILERS[0], "-O2", *sources, "-o", tmp_path / "corridor", "-lm")
    env = task.make_env(range(1), 0)
    transitions = list(islice(iterate_transitions(agent, env, seed=0, deterministic=True), 20))
    text = "".join(
        f"{a} {b} {c}\n" for a, b, c in (t.inputs.observation["observation"][0].tolist() for t in transitions)
    )
    printed = subprocess.run([tmp_path / "corridor"], input=text, capture_output=True, text=True, check=True).stdout
    actions = [int(line.partition(",")[0].removeprefix("action ")) for line in printed.splitlines()]
    assert actions == [int(transition.action) for transition in transitions]
    result = subprocess.run([tmp_path / "corridor"], input="9 0 0", capture_output=True, text=True)
    assert result.returncode == 1 and "out of range" in result.stderr


CORTEX_M = ROOT / "examples/cortex-m"
CORTEX_M4 = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "--specs=rdimon.specs")
QEMU = ("-M", "mps2-an386", "-nographic", "-semihosting-config", "enable=on,target=native")
TRACK = """
#include <stdio.h>
#include "model.h"

int main(void)
{
    static model_state state;
    static float logits[MODEL_OUTPUTS];
    unsigned seed = 1;
    model_init(&state);
    for (int i = 0; i < TOKENS; i++) {
        seed = seed * 1664525u + 1013904223u;
        printf("%d %d\\n", (int)(seed >> 31), model_step(&state, (int)(seed >> 31), logits));
    }
    return 0;
}
"""


@pytest.mark.parametrize("machine", ["arm", "cortex-m4"])
def test_the_shipped_tracker_runs_on_arm(machine: str, tmp_path: Path) -> None:
    tools = {
        "arm": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
        "cortex-m4": ("arm-none-eabi-gcc", "qemu-system-arm"),
    }[machine]
    for tool in tools:
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    model, task = load("s5-feedback", "cpu")
    exported(tmp_path, model, task=task, weights="int8")
    (tmp_path / "main.c").write_text(TRACK.replace("TOKENS", "60"))
    files, program = (tmp_path / "main.c", tmp_path / "model.c"), tmp_path / "main"
    if machine == "arm":
        compile_c(tools[0], "-O2", "-static", *files, "-o", program, "-lm")
        command = ["qemu-arm", program]
    else:
        board = (*CORTEX_M4, "-T", CORTEX_M / "memory.ld", CORTEX_M / "start.c")
        compile_c(tools[0], "-O2", *board, *files, "-o", program, "-lm")
        command = ["qemu-system-arm", *QEMU, "-kernel", program]
    printed = subprocess.run(command, capture_output=True, timeout=120, check=True).stdout.decode()
    steps = np.array([line.split() for line in printed.splitlines()], np.int16)
    assert len(steps) == 60
    assert np.array_equal(steps[:, 1], task.train.labels(steps[None, :, 0], None)[0][0])
