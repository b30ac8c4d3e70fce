"""PaddleNLP's Llama on meshes of 2 and 4 processes against one, in dygraph and as a static program."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import ranks
from annotations import methods
from paddlenlp.transformers import LlamaConfig
from roundings import assert_trained_alike

from llm_npu.models import families
from llm_npu.parallel import Degrees, Settings, stages

PROGRAM = Path(__file__).parent / "annotations" / "llama.py"
LAYERS, ROWS, SEQUENCE, HIDDEN, VOCABULARY, STEPS = 2, 4, 16, 64, 128, 3
SPLIT = 7 * LAYERS + 2  # parameters that tp splits: seven projections in a layer, embedding and output layer
PARAMETERS = SPLIT + 2 * LAYERS + 1  # and the norms
NORMS = ("rms_norm", "add_rms_norm")

# (method, mode, precision) that are compared first.
ALWAYS = [
    ("tensor and sequence parallel, tp=2", "static", "float32"),
    ("tensor parallel, tp=2", "dygraph", "bfloat16"),
    ("sharding stage 3, dp=2", "dygraph", "float32"),
    ("pipeline, pp=2", "dygraph", "float32"),
]
OTHERS = [case for case in methods.cases(2) if case not in ALWAYS]
ON_FOUR = methods.cases(4)


def run(folder: Path, n: int, cases: list, seed: int) -> dict:
    """What each process found, by case; and what one process alone found, with and without fusing."""
    settings = [
        {**methods.METHODS[name], "to_static": mode == "static", "precision": precision}
        for name, mode, precision in cases
    ]
    timeout = ranks.TIMEOUT + 60 * len(cases)
    reports = ranks.run(PROGRAM, n, folder, json.dumps(settings), seed, timeout=timeout)
    return {
        **{name: reports[0][name] for name in ("alone", "not fused")},
        **{case: [rank["split"][number] for rank in reports] for number, case in enumerate(cases)},
    }


@pytest.fixture(scope="module")
def always(tmp_path_factory, seed):
    return run(tmp_path_factory.mktemp("always"), 2, ALWAYS, seed)


@pytest.fixture(scope="module")
def others(tmp_path_factory, seed):
    return run(tmp_path_factory.mktemp("others"), 2, OTHERS, seed)


@pytest.fixture(scope="module")
def two_processes(always, others):
    return {**others, **always}


@pytest.fixture(scope="module")
def on_four(tmp_path_factory, seed):
    return run(tmp_path_factory.mktemp("on_four"), 4, ON_FOUR, seed)


def check(results: dict, case: tuple[str, str, str], record_property) -> None:
    """Losses, norms and moments are those of one process, from the fused operators; the docs' table hears of
    it."""
    record_property(*methods.row(*case).recorded)
    method, mode, precision = case
    stages_of_it = methods.METHODS[method].get("pp", 1)
    alone, unfused = results["alone"][precision], results["not fused"][precision]
    assert len(set(alone["losses"])) == STEPS  # it does train
    for number, rank in enumerate(results[case]):
        assert "failure" not in rank, rank["failure"]
        assert_trained_alike("losses", losses(rank), losses(alone), list(map(losses, unfused)))
        if mode == "static" and number >= len(results[case]) // stages_of_it:
            assert np.isnan(rank["norms"]).all()  # the first stage clips
        else:
            norms = [run["norms"] for run in unfused]
            assert_trained_alike("norms", rank["norms"], alone["norms"], norms)
        assert rank["dtypes"] == [precision, "float32"]  # of weights, and of what the optimizer updates
        backends = dict(rank["ran"])
        fused = {"flash_attention", "linear_cross_entropy", "rotary_mul", "swiglu", *NORMS}
        if mode == "dygraph" and number < len(results[case]) * (stages_of_it - 1) // stages_of_it:
            fused.remove("linear_cross_entropy")  # the last stage has the loss; programs begin with all
        # In bfloat16 the program allows nothing else, and no kernel that a card has not.
        native = {"flash_attention"} if precision == "float32" else set()
        assert backends == {name: "native" if name in native else "ascend" for name in fused}
    # The gradients behind the clipping, of which losses say little: Adam divides by their size.
    whole = {}
    for rank in results[case]:
        for name_of_moment, parts in rank["moments"].items():
            whole.setdefault(name_of_moment, {}).update(parts)
    assert set(whole) == set(alone["moments"])
    here, baseline, *others = (
        np.array([sum(moments[name].values()) for name in sorted(whole)])
        for moments in (whole, alone["moments"], *(run["moments"] for run in unfused))
    )
    assert_trained_alike("moments", here / baseline, baseline / baseline, others / baseline)


def losses(run: dict) -> list[float]:
    """Of the steps, and of a batch it has not seen."""
    return [*run["losses"], run["evaluated"]]


@pytest.mark.slow
@pytest.mark.parametrize("case", ALWAYS, ids=", ".join)
def test_losses_are_those_of_one_process(always, case, record_property):
    check(always, case, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS, ids=", ".join)
def test_other_methods(others, case, record_property):
    check(others, case, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("case", ON_FOUR, ids=", ".join)
def test_four_processes(on_four, case, record_property):
    check(on_four, case, record_property)


def test_settings_that_cannot_be():
    for wrong, words in (
        (lambda: Degrees(dp=0), "the degree of dp is 0"),
        (lambda: Degrees(tp=2, mp=4), "tp is 2 and mp, its alias, 4"),
        (lambda: Settings(Degrees(), sharding=4), "sharding is 4"),
        (lambda: Settings(Degrees(), accumulation=0), "accumulation is 0"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()


def test_mp_is_another_name_of_tp():
    assert Degrees(dp=2, mp=4) == Degrees(dp=2, tp=4)


def test_models_that_cannot_be_cut():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "vocab_size": 8}
    config = LlamaConfig(num_hidden_layers=2, **sizes)
    with pytest.raises(ValueError, match=r"pp is 3, .* 2 layers"):
        stages.cut(families.new_model(config), 0, 3)
    config.tie_word_embeddings = True
    with pytest.raises(ValueError, match="tie_word_embeddings"):
        stages.cut(families.new_model(config), 0, 2)


def test_stages_have_all_layers():
    assert [list(stages.layers_of(stage, 3, 7)) for stage in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "vocab_size": 8}
    config = LlamaConfig(num_hidden_layers=3, **sizes)
    whole = [name for name, _ in families.new_model(config).named_parameters()]
    parts = []
    for stage in range(2):
        model = families.new_model(config)
        stages.cut(model, stage, 2)
        parts += [name for name, _ in model.named_parameters()]
    assert sorted(parts) == sorted(whole)


def program(results: dict, name: str) -> list[Counter]:
    """(part of the step, kind, elements given) of every collective in a process's program, counted."""
    return [
        Counter((role, kind, int(np.prod(shape))) for role, kind, _, shape in rank["program"])
        for rank in results[name, "static", "float32"]
    ]


TOKENS = ROWS * SEQUENCE
WHOLE, HALF = TOKENS * HIDDEN, TOKENS * HIDDEN // 2  # hidden states, and a process's part of them
# Paddle's clipping sums the squares of each parameter that is split by itself; theory asks for one number.
CLIPPING = Counter({("optimizer", "all_reduce", 1): SPLIT})
# The loss joins the parts of the vocabulary: maximum, sum of exponentials, the label's logit.
LOSS = Counter({("forward", "all_reduce", TOKENS): 3})


@pytest.mark.slow
def test_collectives_of_tensor_parallel(two_processes):
    """Two sums of hidden states in each layer forward and two backward, one for the output layer's input."""
    theory = LOSS + CLIPPING
    theory["forward", "all_gather", HALF] = 1  # the embedding is split by hidden
    theory["forward", "all_reduce", WHOLE] = 2 * LAYERS
    theory["backward", "all_reduce", WHOLE] = 2 * LAYERS + 1
    for collectives in program(two_processes, "tensor parallel, tp=2"):
        assert collectives == theory


@pytest.mark.slow
def test_collectives_of_sequence_parallel(always):
    """all_gather before and a scattered sum behind what is tensor parallel, and the other way backward."""
    theory = LOSS + CLIPPING
    theory["forward", "all_gather", HALF] = (
        2 * LAYERS + 1 + 1
    )  # and the embedding, before it is split by tokens
    # In place of reduce_scatter, for which a card has no kernel: see llm_npu.patches.program_kernels.
    theory["forward", "all_to_all", WHOLE] = 2 * LAYERS
    theory["backward", "all_gather", HALF] = 2 * LAYERS + 1
    theory["backward", "all_to_all", WHOLE] = 2 * LAYERS + 1
    theory["optimizer", "all_reduce", HIDDEN] = (
        2 * LAYERS + 1
    )  # the norms' gradients: each process saw its tokens
    for collectives in program(always, "tensor and sequence parallel, tp=2"):
        assert collectives == theory


@pytest.mark.slow
def test_collectives_of_data_parallel(two_processes):
    """The loss and the number of its labels, and each gradient once; nothing of activations."""
    for rank in two_processes["data parallel, dp=2", "static", "float32"]:
        sizes = Counter(tuple(shape) for _, kind, _, shape in rank["program"] if kind == "all_reduce")
        assert sum(sizes.values()) == len(rank["program"]) == PARAMETERS + 2
        assert sizes[(HIDDEN,)] == 2 * LAYERS + 1
        assert sizes[(VOCABULARY, HIDDEN)] == sizes[(HIDDEN, VOCABULARY)] == 1
        assert sizes[()] + sizes[(1, 1)] == 2


@pytest.mark.slow
def test_collectives_of_a_pipeline(two_processes):
    """Hidden states of a micro batch forward, their gradients back; for the clipping a number or two for each
    parameter. Both processes take part in each: one gives zeros to a sum.
    """
    hidden, micro_batches = (ROWS // 2, SEQUENCE, HIDDEN), 2
    reports = two_processes["pipeline, pp=2", "static", "float32"]
    theory = Counter()  # of what the programs of both send
    for rank in reports:
        for role, kind, n, shape in rank["program"]:
            assert kind == "send"
            theory["all_reduce", n, tuple(shape)] += 1 if role == "optimizer" else micro_batches
    assert theory["all_reduce", 2, hidden] == 2 * micro_batches
    assert sum(n for (_, _, shape), n in theory.items() if shape != hidden) <= 2 * PARAMETERS
    for rank in reports:  # the device's record
        assert Counter((kind, n, tuple(shape)) for kind, n, shape in rank["sent"]) == theory


@pytest.mark.slow
def test_what_dygraph_sends_besides(two_processes):
    """Dygraph sums the gradient of each product's input by itself: five in a layer, not two."""
    for rank in two_processes["tensor parallel, tp=2", "dygraph", "float32"]:
        sent = Counter((kind, int(np.prod(shape))) for kind, _, shape in rank["sent"])
        assert sent["all_reduce", WHOLE] == 2 * LAYERS + 5 * LAYERS + 1
        assert (
            sent["all_gather", HALF]
            == sum(sent[kind, size] for kind, size in sent if kind == "all_gather")
            == 1
        )
