"""Products, their settings and cuts, and the bound of a pipeline against timelines worked out by hand."""

import re

import pytest
from places import ROOT

from benchmarks.overlap import ideal
from benchmarks.overlap.ideal import bound, gather_lanes, reduce_lanes
from llm_npu.parallel.overlap import Product, Setting
from llm_npu.parallel.overlap.planner import best, settings_for
from llm_npu.parallel.overlap.product import spans

pytestmark = pytest.mark.sampled

SERIAL, FOUR, FUSED = (Setting.of(name) for name in ("serial", "pipelined:4", "mc2"))
# 4 MB are sent, which takes 100 ms; a product of all rows takes 100 ms.
ALL_REDUCE = Product("all_reduce", 1024, 2048, 2048, "bfloat16", 2)


def test_lanes():
    assert reduce_lanes([1, 1, 1], [1, 1, 1]) == 4  # the last collective is left
    assert reduce_lanes([1, 1], [3, 3]) == 7  # the link is the longer lane
    assert reduce_lanes([1, 1], [3, 3], concurrent=10) == 12
    assert gather_lanes(2, [1, 1], [1, 1]) == 4  # hidden behind the own rows
    assert gather_lanes(0, [1, 1], [3, 3]) == 7


@pytest.mark.parametrize(("chunks", "milliseconds"), [(1, 200), (2, 150), (4, 125), (8, 112.5)])
def test_the_bound_of_equal_lanes(chunks, milliseconds):
    assert bound(ALL_REDUCE, chunks, 0.1, 0.1) == pytest.approx(milliseconds / 1e3)


def test_what_is_sent():
    assert ALL_REDUCE.sent == 1024 * 2048 * 2  # half of it, twice
    assert Product("reduce_scatter", 1024, 8, 2048, "float32", 4).sent == 3 * 256 * 2048 * 4
    assert Product("all_gather", 256, 2048, 8, "float32", 4).sent == 3 * 256 * 2048 * 4


def test_the_chunks_of_mc2_are_those_of_the_virtual_npus_operators():
    source = ROOT / "virtual_npu/csrc/custom_ops/mm_operands.cc"
    constants = dict(re.findall(r"constexpr int64_t (k\w+) = ([^;]+);", source.read_text()))
    most, rows, content = (constants[name] for name in ("kMostChunks", "kFewestRows", "kFewestBytes"))
    assert (int(most), int(rows)) == (ideal.MC2_CHUNKS, ideal.MC2_ROWS)
    assert content == "int64_t{1} << 16" and ideal.MC2_BYTES == 1 << 16


def test_a_gradient_beside_hides_the_collective():
    trained = Product(
        *(getattr(ALL_REDUCE, name) for name in ("kind", "rows", "depth", "columns", "dtype")), 2, True
    )
    assert bound(trained, 1, 0.1, 0.1, concurrent=0.12) == pytest.approx(0.22)


def test_a_tie_goes_to_the_simpler_setting():
    assert best({SERIAL: 1.0, FUSED: 0.995, FOUR: 0.992}) == SERIAL
    assert best({SERIAL: 1.2, FUSED: 0.995, FOUR: 0.992}) == FUSED


def test_settings_of_few_rows():
    few = Product("reduce_scatter", 6, 256, 256, "float32", 2)
    assert [str(setting) for setting in settings_for(few, with_mc2=False)] == ["serial", "pipelined:2"]


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
