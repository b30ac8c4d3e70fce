"""Ring attention on two to four real ranks."""

import json
from pathlib import Path

import pytest
import ranks

PROGRAM = Path(__file__).with_name("ring_program.py")
GQA = {"heads": [6, 2], "sizes": [16, 16]}
ODD = {"heads": [3, 3], "sizes": [17, 9]}


def cases(n: int) -> list[dict]:
    length = 2 * n * 5  # chunks of five tokens
    long = length - 7
    masks = ["causal", "full", [3, long, 4], [1] * 6 + [length - 6], [length // 2] * 2]
    rows = [[3, long, 4], [length]]
    return [
        *({**GQA, "dtype": "bfloat16", "mask": mask} for mask in masks),
        {**GQA, "dtype": "bfloat16", "mask": rows, "batch": 2},
        {**GQA, "dtype": "bfloat16", "mask": [3, long, 4], "causal": False, "batch": 2},
        {**GQA, "dtype": "bfloat16", "mask": "causal", "frozen": [1, 2]},
        {**GQA, "dtype": "bfloat16", "mask": "causal", "frozen": [0], "length": 2 * n},  # chunks of one token
        *({**ODD, "dtype": dtype, "mask": mask} for dtype in ("bfloat16", "float32") for mask in masks[:3]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("sends", ["0", "1"])
@pytest.mark.parametrize(("n", "groups"), [(2, 2), (2, 1), (3, 2), (4, 2)])
def test_ring_attention_is_the_attention_of_one_rank(n, groups, sends, tmp_path):
    rows = [{"length": 2 * n * 5, **case} for case in cases(n)]
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(rows))
    reports = ranks.run(PROGRAM, n, tmp_path / "ranks", file, groups, VIRTUAL_NPU_SYNC_SENDS=sends)
    for index, case in enumerate(rows):
        frozen = case.get("frozen", [])
        for report in reports:
            result = report["results"][index]
            assert result["backend"] == ("native" if case["dtype"] == "float32" else "ascend"), case
            assert ("two groups" in result["mode"]) == (groups == 2 and n % 2 == 0)
            for name, position, errors in zip(
                ("out", "dq", "dk", "dv"), (None, 0, 1, 2), result["errors"], strict=True
            ):
                assert (errors is None) == (position in frozen), (case, name)
                if errors is None:
                    continue
                error, allowed = errors
                assert error <= allowed, (case, name, errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n", "count"), [("gathered", 2, 16), ("gathered", 3, 16), ("hybrid", 4, 12)]
)
def test_gathered_keys_and_shared_heads_give_the_attention_of_one_rank(name, n, count, tmp_path):
    program = PROGRAM.with_name(f"{name}_program.py")
    for report in ranks.run(program, n, tmp_path, VIRTUAL_NPU_SYNC_SENDS="1"):
        assert len(report["results"]) == count
        for result in report["results"]:
            for error, allowed in result["errors"]:
                assert error <= allowed, result
