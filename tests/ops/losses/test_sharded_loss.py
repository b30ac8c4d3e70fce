"""linear_cross_entropy with a process group that shards the vocabulary, on two ranks."""

from pathlib import Path

import pytest
import ranks


@pytest.mark.slow
def test_two_ranks_with_half_of_the_vocabulary_each(tmp_path):
    """As near to float64 as the operator on the whole vocabulary, on every backend, in every dtype."""
    for report in ranks.run(Path(__file__).with_name("sharded_loss_program.py"), 2, tmp_path):
        assert report["beyond"] == {}
        assert report["ran"] == ["ascend", "composed", "native"]
