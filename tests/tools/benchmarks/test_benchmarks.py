"""python -m benchmarks: the benchmarks by their names, wherever it is started."""

import importlib

import pytest

from benchmarks import ROOT, report
from benchmarks.__main__ import COMMANDS, main
from paddle_fused import command_line

pytestmark = pytest.mark.sampled

PATH = {"PYTHONPATH": str(ROOT)}


def test_help_names_every_benchmark(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"    {name} " in printed and what in printed for name, (_, what) in COMMANDS.items())


@pytest.mark.parametrize("words", [["opps"], [], ["--quick"]])
def test_another_name_is_refused_in_a_sentence(words, capsys):
    assert command_line.run(main, words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "accepted: ops, step, varlen" in error


@pytest.mark.parametrize("name", COMMANDS)
def test_every_benchmark_has_help_under_its_name(name, capsys):
    module = importlib.import_module(f"benchmarks.{COMMANDS[name][0]}")
    with pytest.raises(SystemExit) as caught:
        module.main(["--help"])
    assert caught.value.code == 0 and f"usage: python -m benchmarks {name} " in capsys.readouterr().out


def test_only_the_chosen_one_is_imported(run_python):
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules));"
        "from paddle_fused import command_line; from benchmarks.__main__ import main; "
        "sys.exit(command_line.run(main, ['ops', '--contenders', 'nobody']))"
    )
    done = run_python("-c", code, **PATH)
    assert done.returncode == 2, done.stderr
    imported = done.stdout.split()
    assert "benchmarks.ops.command" in imported
    assert not {"benchmarks.step", "paddle", "matplotlib"} & set(imported)


@pytest.mark.slow
def test_processes_start_in_any_folder(run_python, tmp_path):
    """Contenders, and those that measure the limits."""
    selection = ("--only", "swiglu 64x256 float32 fwd", "--contenders", "fused cpu", "--rounds", "1")
    words = ("ops", "--quick", *selection, "--json", "new.jsonl")
    done = run_python("-m", "benchmarks", *words, cwd=tmp_path, **PATH)
    assert done.returncode == 0, done.stderr
    assert report.read(str(tmp_path / "new.jsonl"))
