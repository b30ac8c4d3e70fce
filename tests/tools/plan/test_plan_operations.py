"""An operation says what it is, and refuses what it cannot be."""

import pytest

from llm_npu.plan.step_model.operations import Operation


def test_a_collective_names_its_group():
    gather = Operation(
        "qkv.all_gather", "collective", collective="all_gather", payload=2**20, group="tp", group_size=8
    )
    assert (gather.phase, gather.overlaps, gather.count) == ("forward", "", 1)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kind": "matmull"}, "The kind of operation x is 'matmull': .*did you mean 'matmul'"),
        ({"kind": "matmul", "phase": "warmup"}, "The phase of operation x is 'warmup'"),
        ({"kind": "collective", "group": "tp"}, "The collective of operation x is ''"),
        (
            {"kind": "collective", "collective": "all_reduce", "group": "ep"},
            "The group of operation x is 'ep'",
        ),
        ({"kind": "vector", "payload": 1.0}, "only kind 'collective' has these"),
    ],
)
def test_what_is_not_an_operation(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        Operation("x", **fields)
