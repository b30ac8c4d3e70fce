"""The models against published runs: how well they predict them, and the page about it."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks.planner import command, fitting, page, published, validation
from benchmarks.planner.programs.program import ProgramEfficiencies
from llm_npu.core.cards import card
from llm_npu.plan import cost, interval

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results():
    return validation.validation()


def named(name):
    return next(point for point in published.points() if point.name == name)


def test_the_page_has_every_run_and_a_picture(results, tmp_path):
    written = page.page(results)
    for run in published.data()["points"]:
        assert run["name"] in written
    assert "](images/planning_validation.png)" in written
    page.chart(results, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_the_worst_run_is_first_and_large_errors_have_a_reason(results):
    rows = [line.split(" | ") for line in page.table(results).splitlines()[2:]]
    errors = [abs(float(row[8].removesuffix(" %"))) for row in rows]
    assert errors == sorted(errors, reverse=True) and len(rows) >= 110
    assert all(row[10].strip(" |") for row, error in zip(rows, errors, strict=True) if error > 8)


def test_plans_use_what_was_fitted(results):
    used = cost.fitted()
    for name in command.USED:
        assert getattr(used, name) == pytest.approx(getattr(results.efficiencies, name), rel=5e-3), name
    stored = json.loads((cost.DATA / "efficiencies.json").read_text())["families"]
    assert set(stored) == {*interval.FAMILIES, interval.OTHER} < set(results.families)
    for name in stored:
        family = results.families[name]
        assert stored[name]["width"] == pytest.approx(family.width, abs=5e-3)
        assert stored[name]["runs"] == family.runs >= 4


def test_errors_of_the_fitted_half(results):
    errors = np.array([run.error for run in results.cross_validated])
    assert len(errors) >= 70 and np.median(abs(errors)) <= 0.052 and abs(errors.mean()) <= 0.03
    assert np.mean([results.within(run) for run in results.cross_validated]) >= 0.9


def test_errors_of_the_held_out_half_have_not_grown(results):
    errors = np.array([run.error for run in results.held_out])
    assert len(errors) >= 49 and np.median(abs(errors)) <= 0.05 and abs(errors.mean()) <= 0.03
    assert np.mean([results.within(run) for run in results.held_out]) >= 0.9


def test_the_halves_are_made_by_the_rule():
    runs = published.data()["points"]
    assert "SHA-256" in published.data()["split"]
    assert published.half({"name": "a"}) == published.FITTED  # ca...
    assert published.half({"name": "c"}) == published.FITTED  # 2e...
    assert published.half({"name": "d"}) == published.FITTED  # 18...
    assert published.half({"name": "e"}) == published.HELD_OUT  # 3f...
    assert published.half({"name": "e", "seen": True}) == published.FITTED
    unnamed = {"name": "a", "card_unnamed": True, "seen": True}
    assert published.half(unnamed) == published.UNNAMED
    judged = [run for run in runs if "left_out" not in run and published.half(run) != published.UNNAMED]
    new = [run for run in judged if not run.get("seen")]
    held_out = [run for run in new if published.half(run) == published.HELD_OUT]
    assert len(held_out) >= 40 and len(held_out) >= 0.45 * len(new)


def test_a_run_is_predicted_from_other_models():
    left, right = named("MindSpeed-LLM CodeLlama 34B"), named("MindSpeed-LLM LLaMA2 34B")
    other = named("MindSpeed-LLM LLaMA2 7B")
    start = ProgramEfficiencies(**dataclasses.asdict(cost.fitted()))
    alone = validation.fitted_on([other], start)
    runs = validation.cross_validated([left, right, other], start)
    assert left.model() == right.model() != other.model()
    for run, point in zip(runs[:2], (left, right), strict=True):
        assert run.predicted == point.predict(alone)


def test_a_width_holds_nine_of_ten():
    assert validation.width([-0.3, 0.1, 0.2]) == 0.3
    assert validation.width([number / 100 for number in range(1, 20)]) == 0.18
    assert interval.around(10.0, 0.25) == (8.0, pytest.approx(13.333, rel=1e-3))


def test_the_fit_finds_what_made_the_measurements():
    points = published.timed(published.FITTED)[::2]
    true = ProgramEfficiencies(
        cube=0.7, attention=0.5, hidden=0.7, memory=0.8, links=0.8, gather=0.35, earlier=1.05
    )
    measured_points = [
        dataclasses.replace(point, measured=point.predict(true).tokens_per_second_per_card)
        for point in points
    ]
    again = validation.fitted_on(measured_points)
    for name in fitting.PRIORS:
        assert getattr(again, name) == pytest.approx(getattr(true, name), rel=0.06), name  # priors pull
    # Runs that overlap nothing say nothing of overlap: the prior stays.
    alone = [
        point
        for point in measured_points
        if point.layout.tensor_parallel_degree == point.layout.context_parallel_degree == 1
        and not (point.software.overlaps_gradients or point.software.overlaps_weights)
    ]
    assert len(alone) >= 4
    prior = fitting.PRIORS["hidden"][0]
    assert validation.fitted_on(alone).hidden == pytest.approx(prior, rel=0.1)


def test_published_runs_are_those_of_their_sources():
    data = published.data()
    assert len({run["name"] for run in data["points"]}) == len(data["points"]) >= 190
    for run in data["points"]:
        degrees = run["tensor_parallel"] * run["pipeline_parallel"] * run.get("context_parallel", 1)
        assert run["source"] in data["sources"]
        assert "left_out" in run or run["cards"] % degrees == 0
        assert run["script"].endswith((".sh", ".yaml", ".pdf"))
        assert run.get("commit") or run["source"] == "readme-2024"
        assert "tokens_per_s_per_card" in run
        if "left_out" not in run and "stage_layers" in run:
            assert sum(run["stage_layers"]) == run["num_layers"]
            assert len(run["stage_layers"]) == run["pipeline_parallel"]


def test_the_command_writes_the_data(results, tmp_path):
    command.write(results, tmp_path)
    written = json.loads((tmp_path / "efficiencies.json").read_text())
    assert written["efficiencies"]["cube"] == results.efficiencies.cube


def test_a_published_run_resembles_published_runs():
    """Limits are what is published, so that nothing is said to be unlike it that is there."""
    points = published.points()
    degrees = {name: f"{name}_parallel_degree" for name in interval.MOST}
    for name, most in interval.MOST.items():
        assert max(getattr(point.layout, degrees[name]) for point in points) == most
    assert max(point.layout.cards for point in points) == interval.MOST_CARDS
    assert max(point.shape.num_experts for point in points) == interval.MOST_EXPERTS
    for point in points:
        unlike = interval.unlike_published(point.shape, point.layout, card(point.card))
        assert not [*unlike], point.name
