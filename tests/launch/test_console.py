"""What programs print is the text itself: no markup, no emoji codes, no lost tabs."""

import io

from rich.console import Console

from benchmarks import report as benchmark_report
from llm_npu.core import console
from llm_npu.surgery.report import Report, Row

TEXT = "data[0:100:2] [bold]x[/bold] :smile: \ta\tb  [link=file:///x]y[/link]"


def test_a_line_is_printed_as_it_is(capsys):
    console.say(TEXT + "\r\x1b[31m")
    assert capsys.readouterr().out == TEXT + "\r\x1b[31m\n"


def test_a_terminal_shows_control_characters_instead_of_obeying_them(monkeypatch):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, highlight=False, soft_wrap=True)
    monkeypatch.setattr(console, "SCREEN", terminal)
    console.say(TEXT + "\x1b[31m\x9b\rüß")
    assert screen.getvalue() == TEXT + "\\x1b[31m\\x9b\\rüß\n"


def test_names_in_tables_are_text(capsys):
    names = "layers[0] [red]y[/red] :100:"
    shown = str(Report(f"model {names}", [Row(names, "Kind[x]", "rms_norm", False, names)]))
    assert shown.count(names) == 3
    table = benchmark_report.blank(names, [names], [])
    table.add_row(names)
    benchmark_report.show(table, f"{names}\tend")
    out = capsys.readouterr().out
    assert out.count(names) == 4 and f"{names}\tend\n" in out
