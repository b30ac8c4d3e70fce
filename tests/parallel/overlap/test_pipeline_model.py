"""The planner's model of a pipeline, against timelines that are worked out by hand."""

import dataclasses
import re
from pathlib import Path

import pytest

import paddle_fused
from llm_npu.parallel.overlap import Product, Setting, pipeline_model
from llm_npu.parallel.overlap.pipeline_model import Rates, bound, gather_lanes, predict, reduce_lanes
from llm_npu.parallel.overlap.planner import best, nearly_best, settings_for
from llm_npu.parallel.overlap.product import spans

SERIAL, WHOLE, FOUR, FUSED = (Setting.of(name) for name in ("serial", "pipelined:1", "pipelined:4", "mc2"))
# 4 MB are sent, which takes 100 ms; a product of all rows takes 100 ms.
ALL_REDUCE = Product("all_reduce", 1024, 2048, 2048, "bfloat16", 2)


def rates(latency=0.0, work=0.0, copy=0.0):
    return Rates(((1024, 0.1),), latency, 0.1 / ALL_REDUCE.sent, work, 0.0, copy)


def test_lanes():
    assert reduce_lanes([1, 1, 1], [1, 1, 1]) == 4  # the last collective is left
    assert reduce_lanes([1, 1], [3, 3]) == 7  # the link is the longer lane
    assert reduce_lanes([1, 1], [3, 3], beside=10) == 12
    assert gather_lanes(2, [1, 1], [1, 1]) == 4  # hidden behind the own rows
    assert gather_lanes(0, [1, 1], [3, 3]) == 7


@pytest.mark.parametrize(("chunks", "milliseconds"), [(1, 200), (2, 150), (4, 125), (8, 112.5)])
def test_the_bound_of_equal_lanes(chunks, milliseconds):
    assert bound(ALL_REDUCE, chunks, 0.1, 0.1) == pytest.approx(milliseconds / 1e3)


def test_what_is_sent():
    assert ALL_REDUCE.sent == 1024 * 2048 * 2  # half of it, twice
    assert Product("reduce_scatter", 1024, 8, 2048, "float32", 4).sent == 3 * 256 * 2048 * 4
    assert Product("all_gather", 256, 2048, 8, "float32", 4).sent == 3 * 256 * 2048 * 4


def test_predictions():
    assert predict(ALL_REDUCE, SERIAL, rates()) == pytest.approx(0.2)
    assert predict(ALL_REDUCE, FOUR, rates()) == pytest.approx(0.125)
    assert predict(ALL_REDUCE, FUSED, rates()) == pytest.approx(0.1125)  # in eight chunks
    assert predict(ALL_REDUCE, FOUR, rates(latency=0.01)) == pytest.approx(
        0.165
    )  # the link is the longer lane
    assert predict(ALL_REDUCE, FOUR, rates(work=0.01)) == pytest.approx(0.155)


def test_chunks_that_are_scattered_are_put_together_first():
    rows = dataclasses.replace(ALL_REDUCE, kind="reduce_scatter")  # half as much is sent
    copying = rates(copy=0.01 / (1024 * 2048 * 2))
    assert predict(rows, FOUR, copying) == pytest.approx(predict(rows, FOUR, rates()) + 0.01)
    for product, setting in ((rows, WHOLE), (rows, FUSED), (ALL_REDUCE, FOUR)):
        assert predict(product, setting, copying) == predict(product, setting, rates())


def test_the_chunks_of_mc2_are_those_of_the_virtual_npus_operators():
    source = Path(paddle_fused.__file__).parent / "csrc/virtual_npu/custom_ops/mm_operands.cc"
    found = dict(re.findall(r"constexpr int64_t (k\w+) = ([^;]+);", source.read_text()))
    most, rows, content = (found[name] for name in ("kMostChunks", "kFewestRows", "kFewestBytes"))
    assert (int(most), int(rows)) == (pipeline_model.MC2_CHUNKS, pipeline_model.MC2_ROWS)
    assert content == "int64_t{1} << 16" and pipeline_model.MC2_BYTES == 1 << 16


def test_the_fused_operator_pays_for_a_transposed_copy():
    transposed = dataclasses.replace(ALL_REDUCE, transposed=True)
    measured = dataclasses.replace(rates(), transpose=0.01)
    assert predict(transposed, FUSED, measured) == pytest.approx(predict(ALL_REDUCE, FUSED, measured) + 0.01)
    assert predict(transposed, FOUR, measured) == predict(ALL_REDUCE, FOUR, measured)


def test_a_gradient_beside_hides_the_collective():
    trained = Product(
        *(getattr(ALL_REDUCE, name) for name in ("kind", "rows", "depth", "columns", "dtype")), 2, True
    )
    assert predict(trained, SERIAL, rates()) == pytest.approx(0.3)
    assert predict(trained, WHOLE, rates()) == pytest.approx(0.2)
    assert bound(trained, 1, 0.1, 0.1, beside=0.12) == pytest.approx(0.22)


def test_a_gather_multiplies_its_own_rows_first():
    gather = Product("all_gather", 512, 2048, 2048, "bfloat16", 2)
    measured = Rates(((512, 0.05), (1024, 0.1)), 0.0, 0.1 / gather.sent, 0.0, 0.0, 0.0)
    assert predict(gather, SERIAL, measured) == pytest.approx(0.2)
    assert predict(gather, FOUR, measured) == pytest.approx(0.1125)  # the last chunk's products are left


def test_products_between_and_beyond_the_measured_ones():
    measured = Rates(((100, 1.0), (200, 1.8)), 0, 0, 0, 0, 0)
    assert [measured.multiply(rows) for rows in (50, 100, 150, 200, 400)] == [0.5, 1.0, 1.4, 1.8, 3.6]


def test_a_tie_goes_to_the_simpler_setting():
    assert best({SERIAL: 1.0, FUSED: 0.995, FOUR: 0.992}) == SERIAL
    assert best({SERIAL: 1.2, FUSED: 0.995, FOUR: 0.992}) == FUSED
    assert nearly_best({SERIAL: 1.2, FUSED: 1.1, FOUR: 1.0}) == [FUSED, FOUR]


def test_settings_of_few_rows():
    few = Product("reduce_scatter", 6, 256, 256, "float32", 2)
    assert [str(each) for each in settings_for(few, with_mc2=False)] == ["serial", "pipelined:2"]


@pytest.mark.parametrize(("rows", "chunks"), [(37, 4), (3, 8), (1, 2), (0, 2), (64, 8)])
def test_spans_cover_all_rows(rows, chunks):
    cut = spans(rows, chunks)
    assert [row for first, last in cut for row in range(first, last)] == list(range(rows))
    assert len(cut) == max(1, min(rows, chunks))
    assert max(last - first for first, last in cut) - min(last - first for first, last in cut) <= 1


def test_spans_of_many_rows_are_whole_tiles():
    cut = spans(1860, 16)
    assert [row for first, last in cut for row in range(first, last)] == list(range(1860))
    assert all(first % 16 == 0 for first, _ in cut)
    assert {last - first for first, last in cut} <= {112, 116, 128}


def test_the_bound_where_the_processor_handles_the_data():
    # The first chunk is multiplied undisturbed; handling the last one is part of its journey.
    assert bound(ALL_REDUCE, 2, 0.1, 0.1, 0.02) == pytest.approx(0.16)
    assert bound(ALL_REDUCE, 1, 0.1, 0.1, 0.02) == pytest.approx(0.2)
