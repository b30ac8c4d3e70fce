"""The documentation's build: its pages and tables have what the code has, and mkdocs accepts them all."""

import importlib.util
import re

import generated_pages
import pytest
from places import ROOT

from llm_npu.config.no_effect import OF_A_CARD
from llm_npu.doctor.checks import CHECKS
from paddle_fused import contracts, registry
from virtual_npu.settings import SETTINGS

DOCS = ROOT / "docs"
NAMED = re.compile(r"^\| \[?`([^`]+)`", re.MULTILINE)


def test_every_operator_is_listed():
    assert NAMED.findall(generated_pages.operators()) == sorted(registry.operators())


def test_every_operator_gets_a_place_in_the_navigation():
    class Config:
        nav = [{"Reference": ["a.md", {"Operators": [{"Overview": "operators.md"}]}]}]  # noqa: RUF012

    (reference,) = generated_pages.on_config(Config).nav
    listed = reference["Reference"][1]["Operators"]
    assert [path for entry in listed for path in entry.values()] == [
        "operators.md",
        *(f"operators/{name}.md" for name in sorted(registry.operators())),
    ]


def test_every_variable_is_listed():
    table = generated_pages.settings()
    assert NAMED.findall(table) == list(SETTINGS)
    for name, setting in SETTINGS.items():
        assert f"| `{name}` | {setting.meaning} | {setting.accepts} | {setting.default} |" in table
    assert all(f"`{name}`" in generated_pages.card_variables() for name in OF_A_CARD)


def test_variables_named_by_hand_are_read_somewhere():
    written = (DOCS / "reference/environment.md").read_text()
    sources = "".join(
        file.read_text(encoding="utf-8")
        for folder in ("building", "llm_npu", "paddle_fused", "tests/formers", "tests/models")
        for file in (ROOT / folder).rglob("*.py")
    )
    names = NAMED.findall(written)
    assert "PADDLE_FUSED_BUILD" in names and all(name in sources for name in names)


def test_every_check_of_the_doctor_is_listed():
    assert NAMED.findall(generated_pages.checks()) == list(CHECKS)


def test_the_rules_are_a_page():
    assert set(NAMED.findall(generated_pages.rules())) >= set(contracts.RULES)


def test_the_reasons_of_upstreams_failures_are_listed():
    table = generated_pages.upstream_failures()
    assert "reads a data set from the network" in table and "`test_gelu*`" in table


def test_every_mark_has_a_part_and_a_sentence_for_readers_of_the_sources():
    texts = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    marks = [mark for text in texts for mark in generated_pages.MARK.finditer(text)]
    assert {mark[1] for mark in marks} == set(generated_pages.PARTS)
    for mark in marks:
        assert f"`python docs/generated_pages.py {mark[1]}`" in mark[0]


def test_a_part_is_printed_where_the_site_is_not_built(run_python):
    printed = run_python(DOCS / "generated_pages.py", "card_variables")
    assert printed.stdout == generated_pages.card_variables() + "\n", printed.stderr
    assert run_python(DOCS / "generated_pages.py", "none").returncode == 1


def test_a_page_made_before_takes_the_place_of_its_own(tmp_path, monkeypatch):
    class Page:
        class file:
            src_uri = "api_sweep.md"

    monkeypatch.setattr(generated_pages, "MADE", tmp_path)
    assert generated_pages.on_page_markdown("as generated", page=Page) == "as generated"
    (tmp_path / "api_sweep.md").write_text("as measured")
    assert generated_pages.on_page_markdown("as generated", page=Page) == "as measured"


def test_the_example_of_the_readme_runs(run_program):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (longer,) = re.findall(r"```python\n(.*?)```", (DOCS / "operators.md").read_text(), re.DOTALL)
    result = run_program(f"{example}\n{longer}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "flash_attention" in result.stdout and "add_rms_norm" in result.stdout


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason='needs pip install ".[docs]"')
def test_the_site_is_built(run_python, tmp_path):
    site = tmp_path / "site"
    done = run_python(
        "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site, cwd=ROOT, NO_MKDOCS_2_WARNING="1"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = [page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md")]
    for page in pages:
        if page.name != "index":
            assert (site / page / "index.html").is_file(), page
    assert 'href="operators/rms_norm/"' in (site / "index.html").read_text()
