"""PaddleNLP's Trainer on 2 ranks (4, 8 and some methods: slow): losses and norms of one process."""

import functools
import json
from pathlib import Path

import paddle
import pytest
import ranks
import run_inputs
from hybrid_parallel.methods import (
    ADAPTED,
    CONVERSATIONS,
    EIGHT,
    EXPERT_MODELS,
    FOUR,
    MODELS,
    SPLIT_MODELS,
    STEPS,
    TWO,
    UNFUSED,
    Method,
)
from roundings import ADAM_EPSILON, assert_trained_alike

from llm_npu.models import families, presets, weights

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "hybrid_parallel/program.py"
SOURCES = ("bisect.py", "copy.py", "heapq.py")
AS_ON_A_CARD = {"VIRTUAL_NPU_SYNC_SENDS": "1"}


def of_layers(count: int, learning_rate: float, seed: int, tmp_path_factory) -> list[str]:
    """The arguments of a very small Llama on a little text; before them other models and data, as JSON.

    ``count``: the layers. ``seed``: of the weights and the order of the samples.
    """
    sizes = {"num_hidden_layers": count, "num_attention_heads": 4}
    folders = {CONVERSATIONS: str(run_inputs.conversations(tmp_path_factory.mktemp("conversations")))}
    for name, different in (MODELS | SPLIT_MODELS | EXPERT_MODELS).items():
        inputs = run_inputs.inputs(tmp_path_factory.mktemp("model"), SOURCES, **(sizes | different))
        folders[name] = str(inputs["model_name_or_path"])
        if name == ADAPTED:
            paddle.seed(seed)
            weights.save(families.new_model(presets.model_config(folders[name])), Path(folders[name]))
    fields = {
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
    return [json.dumps(folders), *run_inputs.words(fields)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, seed):
    """A function: what each method of so many processes found, of one start of the program, by key."""

    @functools.cache
    def arguments(deep: bool) -> list[str]:
        return of_layers(*((8, 1e-3) if deep else (4, 5e-3)), seed, tmp_path_factory)

    @functools.cache
    def run(processes: int, which: str, deep: bool = False) -> dict:
        on_a_card = processes == 4 or (processes > 1 and (deep or which.startswith(("split", "experts"))))
        variables = AS_ON_A_CARD if on_a_card else {}
        folder = tmp_path_factory.mktemp("runs")
        timeout = max(ranks.TIMEOUT, 200 * processes)
        words = (processes, which, *arguments(deep))
        return ranks.run(PROGRAM, processes, folder, *words, timeout=timeout, **variables)[0]

    return run


def of(records: list[dict], name: str) -> list[float]:
    return [record[name] for record in records if name in record]


def check(results: dict, method: Method, alone: dict) -> None:
    """The rule of tests/shared/roundings.py."""
    if method.case.on_a_card:
        assert results[method.key]["backends"] == ["ascend"]
        # PaddleNLP's layers divide by a number while they are made.
        assert results[method.key]["left the card"] in ([], [["div_scale", "float32"]])
    baseline, *others = (alone[f"{name}{method.kind}"]["records"] for name in ("one process", *UNFUSED))
    for name, count in (("loss", STEPS), ("grad_norm", STEPS), ("eval_loss", 1)):
        here = of(results[method.key]["records"], name)
        assert len(here) == count, (name, here)
        assert_trained_alike(name, here, of(baseline, name), [of(records, name) for records in others])


@pytest.mark.parametrize("method", [*TWO, *FOUR, *EIGHT], ids=lambda method: f"{method.ranks} {method.key}")
def test_ranks_train_as_one(method, runs, record_property):
    record_property(*method.case.recorded)
    check(runs(method.ranks, method.which, method.deep), method, runs(1, method.alone, method.deep))


def test_it_does_train(runs):
    alone = runs(1, "first")
    (evaluated,) = of(alone["one process"]["records"], "eval_loss")
    assert evaluated < of(alone["one process"]["records"], "loss")[0] - 0.02
    norms = of(alone["one process"]["records"], "grad_norm")
    assert min(norms) > 0.5  # so that the gradients are clipped
