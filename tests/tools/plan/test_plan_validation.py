"""The cost model against published runs: how well it predicts them, and the page about it."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks.planner import command, fitting, page, published, validation
from llm_npu.core import cards
from llm_npu.plan import cost
from llm_npu.plan.cost import step_time
from llm_npu.plan.step_model.roofline import Efficiencies

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found():
    return validation.validation()


def test_the_page_has_every_run_and_a_picture(found, tmp_path):
    written = page.page(found)
    for run in published.data()["points"]:
        assert run["model"] in written
    assert "](images/planning_validation.png)" in written
    page.chart(found, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_plans_use_what_was_fitted(found):
    used = cost.fitted()
    for name in (*fitting.PRIORS, "error"):
        assert getattr(used, name) == pytest.approx(getattr(found.efficiencies, name), rel=5e-3), name
    shape, layout = found.goal[0].point.shape, found.goal[0].point.layout
    assert step_time(shape, layout, cards.card("910b")).error == used.error


def test_errors_of_the_published_runs(found):
    """The goal is a median of 10 % and a worst of 20 %, of tokens/s."""
    assert len(found.goal) == len(found.alone) == 8 and len(found.everywhere) >= 25
    for judged in (found.goal, found.alone, found.everywhere):
        errors = np.abs([one.error for one in judged])
        assert np.median(errors) <= 0.10 and errors.max() <= 0.20


def test_nine_of_ten_runs_are_within_the_stated_error(found):
    within = [abs(one.time_error) <= found.efficiencies.error + 5e-4 for one in found.everywhere]
    assert 0.9 <= np.mean(within) < 1


def test_a_run_and_its_twins_do_not_help_to_predict_it():
    on, points = cards.card("910b"), published.points()
    point = next(point for point in points if point.name == "CodeLlama 34B")
    twins = [other.name for other in points if point.twin(other)]
    assert sorted(twins) == ["CodeLlama 34B", "LLaMA2 34B"]
    false = [
        dataclasses.replace(one, measured=one.measured * 3) if one.name in twins else one for one in points
    ]
    (honest,) = validation.left_out([point], points, on)
    (told,) = validation.left_out([point], false, on)
    assert honest.predicted == told.predicted and honest.fitted_on == len(points) - 2


def test_the_fit_finds_what_made_the_measurements():
    on, points = cards.card("910b"), published.points()
    true = Efficiencies(cube=0.7, attention=0.5, hidden=0.7)
    made = [
        dataclasses.replace(point, measured=point.predict(true, on).tokens_per_second_per_card)
        for point in points
    ]
    again = validation.fitted_on(made, on)
    for name in fitting.PRIORS:
        assert getattr(again, name) == pytest.approx(getattr(true, name), rel=0.06), name  # priors pull
    # Runs without tensor parallelism say nothing of overlap: the prior stays.
    single = [point for point in made if point.layout.tensor_parallel_degree == 1]
    assert validation.fitted_on(single, on).hidden == pytest.approx(fitting.PRIORS["hidden"][0], rel=0.02)


def test_published_runs_are_those_of_the_source():
    data = published.data()
    assert "github.com/Ascend/MindSpeed-LLM" in data["source"]
    for run in data["points"]:
        degrees = run["tensor_parallel"] * run["pipeline_parallel"] * run.get("context_parallel", 1)
        assert run["cards"] % degrees == 0 and run["script"].endswith(".sh")
        if "stage_layers" in run:
            assert sum(run["stage_layers"]) == run["num_layers"]
            assert len(run["stage_layers"]) == run["pipeline_parallel"]
    assert "use_mc2 = False" in data["what"]  # why mc2 is not mc2_in_script
    assert sum(run["goal"] for run in data["points"]) == 8


def test_the_command_writes_the_data(found, tmp_path):
    command.write(found, tmp_path)
    assert json.loads((tmp_path / "efficiencies.json").read_text())["error"] == found.efficiencies.error
