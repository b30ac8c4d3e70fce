"""PaddleNLP's Trainer on 2 ranks (4, 8 and some methods: slow): losses and norms of one process."""

from pathlib import Path

import pytest
import ranks
import run_inputs
from hybrid_parallel.methods import STEPS, UNFUSED, Method, methods
from roundings import ADAM_EPSILON, assert_trained_alike

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "hybrid_parallel/program.py"
SOURCES = ("bisect.py", "copy.py", "heapq.py")
AS_ON_A_CARD = {"VIRTUAL_NPU_SYNC_SENDS": "1"}


def of_layers(count: int, learning_rate: float, seed: int, tmp_path_factory) -> list[str]:
    """The arguments of a very small Llama on a little text; before them the same one with a tied embedding.

    ``count``: its layers. ``seed``: of the weights and the order of the samples.
    """
    sizes = {"num_hidden_layers": count, "num_attention_heads": 4}
    tied = run_inputs.inputs(tmp_path_factory.mktemp("tied"), SOURCES, **sizes, tie_word_embeddings=True)
    given = {
        **run_inputs.inputs(tmp_path_factory.mktemp("inputs"), SOURCES, **sizes),
        "split": "93,7,0",
        "max_seq_length": 32,
        "learning_rate": learning_rate,
        "warmup_steps": 0,
        "adam_epsilon": ADAM_EPSILON,
        "seed": seed,
        "max_grad_norm": 0.5,
        "evaluation_strategy": "steps",
        "eval_steps": STEPS,
        "disable_tqdm": "true",
    }
    return [tied["model_name_or_path"], *run_inputs.words(given)]


@pytest.fixture(scope="module")
def arguments(tmp_path_factory, seed):
    return of_layers(4, 5e-3, seed, tmp_path_factory)


@pytest.fixture(scope="module")
def alone(arguments, tmp_path_factory):
    (found,) = ranks.run(PROGRAM, 1, tmp_path_factory.mktemp("alone"), 1, "first", *arguments)
    return found


@pytest.fixture(scope="module")
def others_alone(arguments, tmp_path_factory):
    (found,) = ranks.run(PROGRAM, 1, tmp_path_factory.mktemp("others_alone"), 1, "others", *arguments)
    return found


@pytest.fixture(scope="module")
def two(arguments, tmp_path_factory):
    return ranks.run(PROGRAM, 2, tmp_path_factory.mktemp("two"), 2, "first", *arguments)[0]


@pytest.fixture(scope="module")
def others_of_two(arguments, tmp_path_factory):
    return ranks.run(PROGRAM, 2, tmp_path_factory.mktemp("others"), 2, "others", *arguments)[0]


@pytest.fixture(scope="module")
def four(arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("four")
    return ranks.run(PROGRAM, 4, folder, 4, "first", *arguments, timeout=900, **AS_ON_A_CARD)[0]


@pytest.fixture(scope="module")
def eight(arguments, tmp_path_factory):
    return ranks.run(PROGRAM, 8, tmp_path_factory.mktemp("eight"), 8, "first", *arguments, timeout=1500)[0]


@pytest.fixture(scope="module")
def deep(tmp_path_factory, seed):
    return of_layers(8, 1e-3, seed, tmp_path_factory)


@pytest.fixture(scope="module")
def deep_alone(deep, tmp_path_factory):
    return ranks.run(PROGRAM, 1, tmp_path_factory.mktemp("deep_alone"), 1, "first", *deep)[0]


@pytest.fixture(scope="module")
def interleaved(deep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("interleaved")
    return ranks.run(PROGRAM, 4, folder, 4, "others", *deep, timeout=900, **AS_ON_A_CARD)[0]


@pytest.fixture(scope="module")
def interleaved_eight(deep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("interleaved_eight")
    return ranks.run(PROGRAM, 8, folder, 8, "others", *deep, timeout=1500, **AS_ON_A_CARD)[0]


def of(records: list[dict], name: str) -> list[float]:
    return [record[name] for record in records if name in record]


def check(found: dict, method: Method, alone: dict) -> None:
    """The rule of tests/shared/roundings.py."""
    if method.case.on_a_card:
        assert found[method.key]["backends"] == ["ascend"]
        # PaddleNLP's layers divide by a number while they are made.
        assert found[method.key]["left the card"] in ([], [["div_scale", "float32"]])
    one, *others = (alone[f"{name}{method.kind}"]["records"] for name in ("one process", *UNFUSED))
    for name, count in (("loss", STEPS), ("grad_norm", STEPS), ("eval_loss", 1)):
        here = of(found[method.key]["records"], name)
        assert len(here) == count, (name, here)
        assert_trained_alike(name, here, of(one, name), [of(records, name) for records in others])


def key(method: Method) -> str:
    return method.key


@pytest.mark.parametrize("method", methods(2, first=True), ids=key)
def test_two_ranks_train_as_one(method, two, alone, record_property):
    record_property(*method.case.recorded)
    check(two, method, alone)


@pytest.mark.parametrize("method", methods(2, first=False), ids=key)
def test_two_ranks_train_as_one_by_other_methods(method, others_of_two, alone, others_alone, record_property):
    record_property(*method.case.recorded)
    check(others_of_two, method, {**alone, **others_alone})


@pytest.mark.parametrize("method", methods(4, first=True), ids=key)
def test_four_ranks_train_as_one(method, four, alone, others_alone, record_property):
    record_property(*method.case.recorded)
    check(four, method, {**alone, **others_alone})


@pytest.mark.parametrize("method", methods(4, first=False), ids=key)
def test_four_interleaved_stages_train_as_one(method, interleaved, deep_alone, record_property):
    record_property(*method.case.recorded)
    check(interleaved, method, deep_alone)


@pytest.mark.parametrize("method", methods(8, first=True), ids=key)
def test_eight_ranks_train_as_one(method, eight, alone, record_property):
    record_property(*method.case.recorded)
    check(eight, method, alone)


@pytest.mark.parametrize("method", methods(8, first=False), ids=key)
def test_interleaved_stages_of_tensor_parallel_ranks_train_as_one(
    method, interleaved_eight, deep_alone, record_property
):
    record_property(*method.case.recorded)
    check(interleaved_eight, method, deep_alone)


def test_it_does_train(alone):
    (evaluated,) = of(alone["one process"]["records"], "eval_loss")
    assert evaluated < of(alone["one process"]["records"], "loss")[0] - 0.02
    norms = of(alone["one process"]["records"], "grad_norm")
    assert min(norms) > 0.5  # so that the gradients are clipped
