"""Collectives of the virtual NPU: what they compute, in processes of collectives/values.py."""

import functools
from pathlib import Path

import pytest
import ranks
from collectives.values import CHECKS, IN_SUBGROUPS, subgroups

PROGRAMS = Path(__file__).parent / "collectives"
QUICK = ("all_reduce of bfloat16", "all_gather", "reduce_scatter", "broadcast and reduce", "all_to_all")


@pytest.fixture(scope="module")
def run_checks(tmp_path_factory):
    """What the ranks of a world of ``n`` found, of all checks or of these, computed once."""

    @functools.cache
    def run(n: int, *checks: str) -> list[dict]:
        folder = tmp_path_factory.mktemp(f"collectives_{n}")
        return ranks.run(PROGRAMS / "values.py", n, folder, *checks, timeout=120 * n)

    return run


def check_against_numpy(reports, n, check):
    groups = ["all", *(subgroups(n) if n > 2 and check in IN_SUBGROUPS else ())]
    names = [f"{check}, {group}" for group in groups]
    for report in reports:
        assert {name: report[name] for name in names} == dict.fromkeys(names, "")


def test_some_equal_numpy(run_checks):
    for check in QUICK:
        check_against_numpy(run_checks(2, *QUICK), 2, check)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_equals_numpy(run_checks, check):
    check_against_numpy(run_checks(2), 2, check)


@pytest.mark.slow
@pytest.mark.parametrize("check", IN_SUBGROUPS)
def test_equals_numpy_in_subgroups(run_checks, check):
    check_against_numpy(run_checks(4, *IN_SUBGROUPS), 4, check)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("n", [4, 8, 16])
def test_equals_numpy_on_many_ranks(run_checks, n, check):
    check_against_numpy(run_checks(n), n, check)
