"""Collectives of the virtual NPU: what they compute, in processes that run tests/collectives/values.py."""

from pathlib import Path

import pytest
import ranks
from collectives.values import CHECKS, IN_SUBGROUPS, subgroups

PROGRAMS = Path(__file__).parent / "collectives"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the ranks of a world of ``n`` found, computed once."""
    worlds = {}

    def run(n: int) -> list[dict]:
        if n not in worlds:
            folder = tmp_path_factory.mktemp(f"collectives_{n}")
            worlds[n] = ranks.run(PROGRAMS / "values.py", n, folder, timeout=120 * n)
        return worlds[n]

    return run


def check_against_numpy(found, n, check):
    groups = ["all", *(subgroups(n) if n > 2 and check in IN_SUBGROUPS else ())]
    names = [f"{check}, {group}" for group in groups]
    for report in found(n):
        assert {name: report[name] for name in names} == dict.fromkeys(names, "")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("n", [2, 4])
def test_equals_numpy(found, n, check):
    check_against_numpy(found, n, check)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("n", [8, 16])
def test_equals_numpy_on_many_ranks(found, n, check):
    check_against_numpy(found, n, check)
