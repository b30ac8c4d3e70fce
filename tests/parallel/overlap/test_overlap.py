"""llm_npu.parallel.overlap and the plugin's fused operators on real ranks (programs/program.py)."""

from pathlib import Path

import numpy as np
import pytest
import ranks
from programs import operators

from llm_npu.parallel.overlap.pending_collectives import PendingCollectives

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "program.py"


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("overlap")
    return ranks.run(PROGRAM, 2, folder, "operators", "planning", "layers", "placements", "errors")


def check(name: str, reports: list[dict]) -> None:
    for rank, report in enumerate(reports):
        result = report["operators"][name]
        for what, compared in result["compared"].items():
            bound = 2 * compared["serial_error"] + compared["rounding"]
            assert compared["error"] <= bound, (rank, what, compared)
        if "mc2" in name:  # the same sums in the same order
            assert set(result["equal"]) == set(result["compared"]), (rank, result)


@pytest.mark.parametrize("name", operators.names())
def test_an_operator_computes_what_the_definition_does(name, reports):
    check(name, reports)


def test_operators_on_four_ranks(tmp_path):
    reports = ranks.run(PROGRAM, 4, tmp_path, "operators", "errors")
    for name in operators.names():
        check(name, reports)


def test_dimensions_before_the_last_are_kept(reports):
    for report in reports:
        assert report["three dimensions"] == {operator.name: [3, True] for operator in operators.OPERATORS}


def test_automatic_mixed_precision(reports):
    assert [report["mixed precision"] for report in reports] == ["paddle.bfloat16"] * 2


def test_outputs_in_flight_keep_their_memory(reports):
    assert all(report["kept outputs"] for report in reports)


class Task:
    """A collective that fails, or not, when it is waited for."""

    def __init__(self, error: Exception | None = None):
        self.error, self.waited = error, False

    def wait(self):
        self.waited = True
        if self.error is not None:
            raise self.error


def test_after_an_error_the_other_collectives_are_waited_for():
    tasks = [Task(), Task(OSError("first")), Task(OSError("second")), Task()]
    with pytest.raises(OSError, match="first"), PendingCollectives(None) as pending:
        for task in tasks:
            pending._start(None, None, task)
    assert all(task.waited for task in tasks)


def test_all_ranks_plan_the_same(reports):
    first, other = (report["planning"] for report in reports)
    for key in ("settings", "gains", "measured", "refused", "kept", "customised", "used"):
        assert first[key] == other[key], key
    assert first["kept"]
    assert len(first["reported"]) == len(first["settings"]) and other["reported"] == []


def test_every_setting_is_timed_and_the_fastest_is_chosen(reports):
    planning = reports[0]["planning"]
    for setting, measured in zip(planning["settings"], planning["measured"], strict=True):
        if not measured:
            assert setting == "serial"
            continue
        assert "serial" in measured and len(measured) > 1
        assert measured[setting] <= 1.01 * min(measured.values())


def test_mc2_is_left_out_with_its_reason(reports):
    refused = reports[0]["planning"]["refused"]
    assert "x1 is float32; accepted: float16 or bfloat16" in refused[0]
    assert refused[2] is None


def test_what_one_rank_refuses_is_planned_by_none(tmp_path):
    reports = ranks.run(PROGRAM, 3, tmp_path, "groups that share a rank")
    _, first, other = (report["groups that share a rank"] for report in reports)
    assert first == other
    for refused in (first["refused"], first["customised"]):
        assert "one communication domain" in refused


def test_customised_settings_are_not_timed(reports):
    assert reports[0]["planning"]["customised"] == ["serial", "serial", "pipelined:3"]


def test_forward_and_backward_are_planned(reports):
    used = reports[0]["planning"]["used"]
    assert used[0].endswith("pipelined")
    assert used[1:] == ["all_gather:8x256x16", "reduce_scatter:16x16x256"]


# What the message of a refused call names: the argument or operator, its value, what is accepted.
EXPECTED = {
    "operator, float32": ("fused_mm_allreduce", "x1", "float32", "bfloat16"),
    "operator, other world size": ("fused_allgather_mm", "world_size", "4"),
    "operator, second domain": ("communication domain",),
    "operator, unknown domain": ("hcom", "nowhere"),
    "float32": ("x1", "float32", "bfloat16"),
    "second domain": ("communication domain",),
    "k": ("255", "256", "65535"),
    "k of the gradient": ("fused_allgather_mm", "k is 9", "256"),
    "dtypes": ("replicated_matmul", "weight", "bfloat16", "float32"),
    "shapes": ("replicated_matmul", "weight", "[4, 256]", "[9, 256]"),
    "rows": ("matmul_reduce_scatter", "x", "shape"),
    "backend": ("backend", "fused", "serial", "pipelined", "mc2"),
    "chunks": ("auto", "serial", "mc2", "pipelined"),
    "too many chunks": ("1000", "1 to 64"),
    "customised shape": ("all_reduce:9",),
    "customised setting": ("backend", "fast"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_cannot_be_computed_is_refused(name, reports):
    for report in reports:
        message = report["errors"][name]
        assert all(key in message for key in EXPECTED[name]), message


def test_every_error_is_expected(reports):
    assert reports[0]["errors"].keys() == EXPECTED.keys()


SUMS = 1e-5  # of losses over some steps, where products may be summed in another order
LAYERS = {
    "tensor parallel": {"replicated_matmul": 10, "matmul_all_reduce": 4},
    "sequence parallel": {"all_gather_matmul": 10, "matmul_reduce_scatter": 4},
}


@pytest.mark.parametrize("parallel", LAYERS)
def test_overlapped_layers_train_as_the_upstream_ones(parallel, reports):
    for report in reports:
        losses = report["layers"][parallel]["losses"]
        assert losses["upstream"][-1] < losses["upstream"][0]
        assert losses["undone"] == losses["upstream"]
        for setting in ("pipelined:2", "planned", "customised"):
            np.testing.assert_allclose(losses[setting], losses["upstream"], rtol=SUMS, err_msg=setting)


@pytest.mark.parametrize("parallel", LAYERS)
def test_layers_are_counted_and_given_back(parallel, reports):
    result = reports[0]["layers"][parallel]
    counts = LAYERS[parallel]
    assert result["summary"] == ", ".join(
        f"{name} {counts[name]} of {counts[name]}" for name in sorted(counts)
    )
    assert (result["removed"], result["left"]) == (sum(counts.values()), 0)


@pytest.mark.parametrize("parallel", LAYERS)
def test_lora_over_frozen_projections(parallel, reports):
    for report in reports:
        lora = report["layers"][parallel]["lora"]
        np.testing.assert_allclose(lora["overlapped"], lora["upstream"], rtol=SUMS)
        assert lora["upstream"][-1] < lora["upstream"][0]
        assert sum("LoRA" in kind for kind in lora["kinds"]) == 2


@pytest.mark.parametrize("parallel", LAYERS)
def test_both_surgeries_on_one_model(parallel, reports):
    for report in reports:
        fused, upstream = (report["layers"][parallel][key] for key in ("with fused operators", "losses"))
        assert fused["counts"] == [14, 14, 0]
        np.testing.assert_allclose(fused["losses"], upstream["upstream"], rtol=SUMS)


@pytest.mark.parametrize(("results", "placement"), [("whole", "Replicate()"), ("split", "Shard(dim=1)")])
def test_distributed_tensors_choose_the_operator_by_their_placements(results, placement, reports):
    for report in reports:
        result = report["placements"][results]
        assert result["placement"] == placement
        assert set(result["errors"]) == {"result", "up", "down"}
        assert all(error < 1e-5 for error in result["errors"].values()), result
        assert (result["summary"], result["removed"]) == ("placed.matmul 1 of 1", 1)


@pytest.mark.parametrize("number", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_llama_of_distributed_tensors_trains_as_before(number, tmp_path):
    for report in ranks.run(PROGRAM.with_name("auto_parallel_llama.py"), number, tmp_path):
        for result in report.values():
            assert result["summary"] == "placed.matmul 4 of 4"
            losses = result["losses"]
            assert losses["None"][-1] < losses["None"][0]
            for overlap in ("serial", "pipelined:2"):
                np.testing.assert_allclose(losses[overlap], losses["None"], rtol=SUMS)
