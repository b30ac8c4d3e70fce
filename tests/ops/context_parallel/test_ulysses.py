"""Attention with heads exchanged for tokens: the bits of one rank, on 2, 3 and 4 ranks in a card's order."""

from pathlib import Path

import pytest
import ranks

from paddle_fused.context_parallel.exchange import partners
from paddle_fused.context_parallel.heads import distribute, shares
from paddle_fused.parity import ROUNDING

PROGRAM = Path(__file__).parent / "ulysses_program.py"
AS_ON_A_CARD = {"VIRTUAL_NPU_SYNC_SENDS": "1"}
FEW_KEY_HEADS = {
    2: ("one key head",),
    3: ("one key head", "few key heads"),
    4: ("one key head", "few key heads"),
}


@pytest.mark.parametrize("count", range(1, 18))
def test_every_pair_of_ranks_meets_once(count):
    rounds = [partners(rank, count) for rank in range(count)]
    for rank, others in enumerate(rounds):
        assert [rounds[other][turn] for turn, other in enumerate(others)] == [rank] * len(others)
        assert sorted({*others, rank}) == list(range(count))
        assert len(others) == (count if count % 2 else count - 1)


@pytest.mark.parametrize("heads, key_heads", [(8, 8), (8, 2), (10, 5), (14, 2), (12, 1), (28, 4)])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_every_query_head_has_its_key_head(heads, key_heads, count):
    distributed = distribute(heads, key_heads, count)
    assert [head for own in distributed.queries for head in range(*own)] == list(range(heads))
    for queries, keys, copies in zip(distributed.queries, distributed.keys, distributed.copies, strict=True):
        read = [head * key_heads // heads for head in range(*queries)]
        assert sorted(set(read)) == list(range(*keys))
        size = len(read) // sum(copies)  # query heads that read a copy
        assert read == [head for head, n in zip(range(*keys), copies, strict=True) for _ in range(n * size)]
    if key_heads >= count:
        assert all(set(copies) == {1} for copies in distributed.copies)


def test_shares():
    assert shares(7, 3) == [3, 2, 2]
    assert shares(1, 2) == [1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranks_compute_the_bits_of_one(count, tmp_path):
    for report in ranks.run(PROGRAM, count, tmp_path, **AS_ON_A_CARD):
        assert report.pop("received") == report.pop("expected")
        assert f"for {count} ranks" in report.pop("too few heads")
        assert len(report) == 14
        for case, result in report.items():
            name, dtype = case.split(", ")
            if name not in FEW_KEY_HEADS[count]:
                assert result["bits"] == [True] * 4, (case, result)
            for alone, split in zip(result["alone"], result["split"], strict=True):
                assert split <= 2 * alone + ROUNDING[dtype], (case, result)
