"""llm-npu profile report: the text, the page, what browsers make of the page, and bad input."""

import base64
import html.parser
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import matplotlib.image
import numpy as np
import pytest
from handmade_profiles import msprof, paddle_trace
from handmade_profiles.msprof import Task

from llm_npu.core import program
from llm_npu.profiling.__main__ import main
from llm_npu.profiling.report import summary
from llm_npu.profiling.report.pages import page, plots

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EMPTY_TAGS = {"meta", "link", "br", "img"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two ranks with steps, memory and every class of work; names that HTML must not take for tags."""
    folder = tmp_path_factory.mktemp("<b>profile & co")
    kinds = [
        ("MatMulV2", "AI_CORE", "DT_BF16;DT_BF16"),
        ("FlashAttentionScore", "MIX_AIC", "DT_BF16"),
        ("Mul<float>&", "AI_VECTOR_CORE", "FLOAT;DT_BF16"),
        ("Cast", "AI_CPU", "DOUBLE"),
        ("nonzero", "HOST_CPU", "INT64"),
        ("hcom_allReduce_", "HCCL", "N/A"),
    ]
    for rank in range(2):
        tasks, trace = [], paddle_trace.Trace(offset="0")
        for step in range(3):
            begin = 1000 * step
            trace.add(f"ProfileStep#{step}", "ProfileStep", begin, 1000)
            for i, (kind, engine, dtypes) in enumerate(kinds):
                start = begin + 150 * i
                tasks.append(Task(kind, engine, start, 120 + 20 * rank, dtypes=dtypes, launch=start - 10))
            trace.memory(begin + 5, (step + 1) << 30, 5 << 30)
        msprof.write(folder / f"rank_{rank}" / "PROF_1", tasks)
        trace.write(folder / f"rank_{rank}")
    return folder


class Structure(html.parser.HTMLParser):
    """Checks that tags close in order, and collects what the tests ask for."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.images, self.tables, self.words, self.addresses = [], [], [], [], []
        self.tags = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.add(tag)
        self.addresses += [attributes[name] for name in ("src", "href") if name in attributes]
        if tag == "img":
            assert attributes["alt"]
            self.images.append(attributes["src"])
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in EMPTY_TAGS:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        self.words.append(data)


def test_the_page_is_whole_and_needs_nothing_else(folder):
    report = summary.build(folder)
    structure = Structure(page.write(report))
    assert structure.open == [] and "script" not in structure.tags
    assert all(address.startswith("data:") for address in structure.addresses)
    assert len(structure.images) == 4 == len(plots.of(report))
    for image in structure.images:
        root = ElementTree.fromstring(base64.b64decode(image.removeprefix("data:image/svg+xml;base64,")))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
    for table in structure.tables:
        assert len(table) > 1 and len({len(row) for row in table}) == 1
    words = "".join(structure.words)
    for advice in report.advice:
        assert advice.title in words and advice.evidence in words
    assert "Mul<float>&" in words and "<b>profile & co" in words
    assert [row[0] for row in structure.tables[0]].count("matmul") == 1


@pytest.mark.slow
def test_the_same_profile_gives_the_same_page(folder):
    assert page.write(summary.build(folder)) == page.write(summary.build(folder))


def test_a_small_profile_has_fewer_plots(tmp_path):
    msprof.write(tmp_path / "PROF_1", [Task("MatMulV2", "AI_CORE", 0, 10)])
    assert len(plots.of(summary.build(tmp_path))) == 2


@pytest.mark.slow  # browsers take their time to start
def test_browsers_show_the_page(folder, tmp_path):
    """In each browser of this machine: no error on its console, and the plots' colours on the screen."""
    file = tmp_path / "report.html"
    file.write_text(page.write(summary.build(folder)))
    Structure(file.read_text())
    for browser in filter(works, BROWSERS):
        picture = tmp_path / "page.png"
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        options += [f"--user-data-dir={tmp_path / 'browser'}", "--enable-logging=stderr"]
        options += ["--window-size=1200,4000", f"--screenshot={picture}"]
        command = [browser, *options, file.as_uri()]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0 and picture.exists(), result.stderr
        assert "CONSOLE" not in result.stderr
        pixels = (matplotlib.image.imread(picture)[..., :3] * 255).round().astype(int)
        for name in ("matmul", "attention", "vector", "AICPU", "host fall-back", "communication, exposed"):
            colour = [int(plots.COLOURS[name][i : i + 2], 16) for i in (1, 3, 5)]
            assert (np.abs(pixels - colour).max(axis=-1) <= 2).sum() > 500, name


def works(browser: str) -> bool:
    """Whether there is such a browser; a name alone may be the advertisement of a package."""
    path = shutil.which(browser)
    return bool(path) and subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0


def test_the_command(folder, tmp_path, capsys):
    file = tmp_path / "report.html"
    assert main(["report", str(folder), "--html", str(file), "--top", "3"]) == 0
    words = capsys.readouterr().out
    assert words.startswith(f"{folder}: 2 ranks, 36 tasks, 6 steps")
    for title in ("Advice", "Time by class", "Top operators", "Fused operators", "Steps", "Ranks", "Memory"):
        assert f"\n{title}" in words
    assert "rank 1 ProfileStep#2" in words and "3.0 GiB" not in words and "3072.0 MiB" in words
    assert "bfloat16" in words and "float64" in words
    assert "4 more operators" not in words and "3 more operators" in words
    assert file.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_comparing(folder, tmp_path, capsys):
    msprof.write(tmp_path / "PROF_1", [Task("MatMulV2", "AI_CORE", 0, 10)])
    file = tmp_path / "report.html"
    assert main(["report", str(folder), "--compare", str(tmp_path), "--html", str(file)]) == 0
    words = capsys.readouterr().out
    assert f"before: {tmp_path}\nafter:  {folder}" in words and "Operators that changed" in words
    assert "Operators that changed" in "".join(Structure(file.read_text()).words)


def test_a_virtual_npu_is_named(folder, tmp_path, capsys):
    msprof.write(tmp_path / "PROF_1", [Task("MatMulV2", "AI_CORE", 0, 10)])
    assert main(["report", str(tmp_path)]) == 0
    assert "virtual NPU" not in capsys.readouterr().out
    (tmp_path / "PROF_1" / "virtual_npu.json").write_text('{"device": "virtual NPU", "is_card": false}')
    assert main(["report", str(tmp_path)]) == 0
    assert "virtual NPU on a host CPU" in capsys.readouterr().out
    assert "virtual NPU on a host CPU" in page.write(summary.build(tmp_path))


def test_bad_input_is_one_sentence(tmp_path, capsys):
    assert program.run(main, ["report", str(tmp_path / "nowhere")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "is not a folder" in captured.err
    assert program.run(main, ["report", str(tmp_path), "--top", "0"]) == 2
    assert "--top is 0" in capsys.readouterr().err
