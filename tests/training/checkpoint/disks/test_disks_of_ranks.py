"""Which ranks see one folder, and checkpoints of machines of which some share a disk."""

from pathlib import Path

import pytest
import ranks

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("disks_of_ranks.py")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What each of four ranks met."""
    return ranks.run(PROGRAM, 4, tmp_path_factory.mktemp("disks"))


def test_the_disks_are_found_out(reports):
    for rank in reports:
        assert rank["one machine"] == [0] * 4
        assert rank["the third has its own"] == [0, 0, 2, 0]
        assert rank["left"] == [], "nothing is left of the entries"
        assert rank["nowhere"] == [[0] * 4, False], "to read a folder does not make it"
        assert rank["ranks of a machine"].startswith("rank 3 on b (ranks 2 to 3) does not see the ")


def test_a_shared_disk_has_the_parts_of_its_ranks(reports):
    parts = [["complete.json", f"model.part-{number}-of-2.safetensors"] for number in (1, 1, 2, 1)]
    assert [rank["parts"] for rank in reports] == parts


def test_a_named_checkpoint_is_gathered_where_it_is(reports):
    for number, rank in enumerate(reports):
        assert rank["gathered"] == [f"{2 if number == 2 else 0}/copied", 7]
        assert rank["names"] == ["complete.json", "model.safetensors"]
        assert rank["repaired"] == [True, 7], "a damaged file comes from the other disk"


def test_what_no_disk_has_is_refused(reports):
    for rank in reports:
        head, line = rank["lost"].splitlines()
        assert "copied of step 7 is not complete" in head
        assert line.startswith("  model.safetensors  ") and "has 7 bytes instead of" in line
        assert "on a (rank 0)" in line and "on c (rank 2)" in line
        assert "no machine has a complete checkpoint" in rank["nothing there"]
        assert rank["from step 0"]
