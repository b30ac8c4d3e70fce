"""PaddleNLP's Llama on meshes of 2 and 4 processes against one, in dygraph and as a static program."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import ranks
from parallel import methods
from precision import ROUNDING

PROGRAM = Path(__file__).parent / "parallel" / "llama.py"
LAYERS, ROWS, SEQUENCE, HIDDEN, VOCABULARY, STEPS = 2, 4, 16, 64, 128, 3
SPLIT = 7 * LAYERS + 2  # parameters that mp splits: seven projections in a layer, embedding and output layer
PARAMETERS = SPLIT + 2 * LAYERS + 1  # and the norms

# (method, mode) that every test run sees; the others are slow.
ALWAYS = [
    ("tensor parallel, mp=2", "static"),
    ("tensor parallel, mp=2", "dygraph"),
    ("tensor and sequence parallel, mp=2", "static"),
    ("data parallel, dp=2", "static"),
    ("sharding stage 3, dp=2", "dygraph"),
]
# Paddle keeps sums of gradients in one scope, under names that a second such program of a process has too.
APART = ("gradient accumulation, dp=2", "static")
OTHERS = [
    (name, mode) for name in methods.TWO for mode in methods.MODES if (name, mode) not in (*ALWAYS, APART)
]
ON_FOUR = [(name, mode) for name in methods.FOUR for mode in methods.MODES]


def run(folder: Path, n: int, cases: list) -> dict:
    """What each process found, by case; and the losses of one process alone."""
    settings = [{**methods.METHODS[name], "to_static": mode == "static"} for name, mode in cases]
    found = ranks.run(PROGRAM, n, folder, json.dumps(settings), timeout=ranks.PATIENCE + 60 * len(cases))
    return {
        "alone": found[0]["alone"],
        **{case: [rank["split"][number] for rank in found] for number, case in enumerate(cases)},
    }


@pytest.fixture(scope="module")
def always(tmp_path_factory):
    return run(tmp_path_factory.mktemp("always"), 2, ALWAYS)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    return run(tmp_path_factory.mktemp("others"), 2, OTHERS)


@pytest.fixture(scope="module")
def on_four(tmp_path_factory):
    return run(tmp_path_factory.mktemp("on_four"), 4, ON_FOUR)


def check(found: dict, case: tuple[str, str], record_property) -> None:
    """The losses are those of one process, from the fused operators; the table of the docs hears of it."""
    record_property(*methods.case(*case).recorded)
    for rank in found[case]:
        assert "failure" not in rank, rank["failure"]
        assert len(set(found["alone"])) == STEPS  # it does train
        # Sums in another order are off by roundings, forward and in the gradients; each step hands them on.
        np.testing.assert_allclose(rank["losses"], found["alone"], rtol=4 * STEPS * ROUNDING["float32"])
        backends = dict(rank["ran"])
        fused = {"flash_attention", "linear_cross_entropy", "rms_norm", "rotary_mul", "swiglu"}
        assert set(backends) == fused and "composed" not in backends.values(), backends


@pytest.mark.parametrize("case", ALWAYS, ids=", ".join)
def test_losses_are_those_of_one_process(always, case, record_property):
    check(always, case, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS, ids=", ".join)
def test_other_methods(others, case, record_property):
    check(others, case, record_property)


@pytest.mark.slow
def test_sums_of_gradients_in_a_program(tmp_path, record_property):
    check(run(tmp_path, 2, [APART]), APART, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("case", ON_FOUR, ids=", ".join)
def test_four_processes(on_four, case, record_property):
    check(on_four, case, record_property)


def program(found: dict, name: str) -> list[Counter]:
    """(part of the step, kind, elements given) of every collective in a process's program, counted."""
    return [
        Counter((role, kind, int(np.prod(shape))) for role, kind, _, shape in rank["program"])
        for rank in found[name, "static"]
    ]


TOKENS = ROWS * SEQUENCE
WHOLE, HALF = TOKENS * HIDDEN, TOKENS * HIDDEN // 2  # hidden states, and a process's part of them
# Paddle's clipping sums the squares of each parameter that is split by itself; theory asks for one number.
CLIPPING = Counter({("optimizer", "all_reduce", 1): SPLIT})
# The loss joins the parts of the vocabulary: maximum, sum of exponentials, the label's logit.
LOSS = Counter({("forward", "all_reduce", TOKENS): 3})


def test_collectives_of_tensor_parallel(always):
    """Two sums of hidden states in each layer forward and two backward, one for the output layer's input."""
    theory = LOSS + CLIPPING
    theory["forward", "all_gather", HALF] = 1  # the embedding is split by hidden
    theory["forward", "all_reduce", WHOLE] = 2 * LAYERS
    theory["backward", "all_reduce", WHOLE] = 2 * LAYERS + 1
    for found in program(always, "tensor parallel, mp=2"):
        assert found == theory


def test_collectives_of_sequence_parallel(always):
    """all_gather before and reduce_scatter behind what is tensor parallel, and the other way backward."""
    theory = LOSS + CLIPPING
    theory["forward", "all_gather", HALF] = (
        2 * LAYERS + 1 + 1
    )  # and the embedding, before it is split by tokens
    theory["forward", "reduce_scatter", WHOLE] = 2 * LAYERS
    theory["backward", "all_gather", HALF] = 2 * LAYERS + 1
    theory["backward", "reduce_scatter", WHOLE] = 2 * LAYERS + 1
    theory["optimizer", "all_reduce", HIDDEN] = (
        2 * LAYERS + 1
    )  # the norms' gradients: each process saw its tokens
    for found in program(always, "tensor and sequence parallel, mp=2"):
        assert found == theory


def test_collectives_of_data_parallel(always):
    """The loss and the number of its labels, and each gradient once; nothing of activations."""
    for rank in always["data parallel, dp=2", "static"]:
        sizes = Counter(tuple(shape) for _, kind, _, shape in rank["program"] if kind == "all_reduce")
        assert sum(sizes.values()) == len(rank["program"]) == PARAMETERS + 2
        assert sizes[(HIDDEN,)] == 2 * LAYERS + 1
        assert sizes[(VOCABULARY, HIDDEN)] == sizes[(HIDDEN, VOCABULARY)] == 1
        assert sizes[()] + sizes[(1, 1)] == 2


def test_what_dygraph_sends_besides(always):
    """Dygraph sums the gradient of each product's input by itself: five in a layer, not two."""
    for rank in always["tensor parallel, mp=2", "dygraph"]:
        sent = Counter((kind, int(np.prod(shape))) for kind, _, shape in rank["sent"])
        assert sent["all_reduce", WHOLE] == 2 * LAYERS + 5 * LAYERS + 1
        assert (
            sent["all_gather", HALF]
            == sum(sent[kind, size] for kind, size in sent if kind == "all_gather")
            == 1
        )
