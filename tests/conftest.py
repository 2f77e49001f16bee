"""What holds for all tests, and which of them are quick."""

import signal

import pytest
import torch

# The laws, and something of every room: what `make quick` runs, within minutes. A file, or one test of it.
QUICK = (
    "tests/test_architecture.py", "tests/test_startup.py", "tests/test_errors.py", "tests/test_configs.py",
    "tests/test_state.py", "tests/cores/test_invariants.py", "tests/cores/test_equalities.py",
    "tests/cores/test_listings.py", "tests/cores/test_delta.py", "tests/fast/test_nan.py",
    "tests/fast/test_transformer_xl.py", "tests/fast/test_delta.py", "tests/fast/test_derivatives.py",
    "tests/fast/test_feedback.py", "tests/models/test_embedding.py", "tests/cores/test_dropout.py", "tests/models",
    "tests/decode/test_source.py", "tests/decode/test_beam.py", "tests/test_text.py", "tests/data/test_text_files.py",
    "tests/tasks/test_scores.py", "tests/tasks/test_recorded.py", "tests/tasks/test_pair_task.py",
    "tests/train/test_curriculum.py", "tests/train/test_optimizers.py", "tests/train/test_objective.py",
    "tests/train/test_learning.py", "tests/train/test_determinism.py", "tests/runs/test_sizes.py",
    "tests/train/test_reliability.py::test_a_killed_training_goes_on_bit_for_bit[random-walk/lstm]",
    "tests/train/test_reliability.py::test_an_interrupted_training_saves_and_says_how_to_go_on",
    "tests/rl/test_corridor.py", "tests/rl/test_agent.py", "tests/experiments/test_experiments.py", "tests/decode/test_generate.py",
    "tests/export/test_vocabulary.py", "tests/serve/test_app.py", "tests/hf/test_causal.py",
    "tests/cli/test_cli.py::test_an_evaluation_prints_one_json_object_that_does_not_depend_on_the_segment",
    "tests/cli/test_cli.py::test_a_run_refuses_a_corpus_or_symbols_that_have_changed",
)  # fmt: skip

# Small tensors gain nothing from many threads, and threads that wait for each other make a busy machine slow.
torch.set_num_threads(1)

# A shell lets commands in the background ignore Ctrl-C, and they hand that down to the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before the markers choose
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    met = set()
    for item in items:
        for place in QUICK:
            if item.nodeid == place or item.nodeid.startswith((f"{place}::", f"{place}/", f"{place}[")):
                met.add(place)
                if not item.get_closest_marker("slow"):
                    item.add_marker("quick")
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if everything and config.option.markexpr == "quick" and (gone := sorted(set(QUICK) - met)):
        raise pytest.UsageError(f"tests/conftest.py names quick tests that are not there: {', '.join(gone)}")
