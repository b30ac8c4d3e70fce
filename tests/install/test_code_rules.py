"""Rules of the code that ruff does not know.

No function takes more positional arguments than a reader keeps apart; what has more takes them by name.
llm_npu raises UserError with a sentence for bad input, so that programs answer with it; a defect is an
assert. A file has one idea and a folder one room: both stay small. Commands outlive the readers of their
output.
"""

import ast
import re
import warnings
from collections import defaultdict
from pathlib import Path

import pytest
from places import ROOT
from test_imports import Sources, below, sources_of_the_project, statements

MOST = 7
MOST_LINES = 600
MOST_MODULES = 20  # side by side; a header and its source are one
SOURCES = (".py", ".cc", ".h")
ROOMS = ("paddle_fused", "virtual_npu", "llm_npu", "scripts", "benchmarks", "building", "tests")
# Not paddle_fused: its functions have the signatures of the operators that they stand for.
CHECKED = ("llm_npu", "scripts", "benchmarks")
COMMANDS = ("paddle_fused", "virtual_npu", "llm_npu", "scripts", "benchmarks")
# What other programs of the project start, and read until it ends.
CHILDREN = (
    "benchmarks.ops.limits",
    "benchmarks.overlap.worker",
    "benchmarks.worker",
    "llm_npu.acceptance.checks",
    "llm_npu.acceptance.rank",
    "llm_npu.cluster.without_run",
    "llm_npu.cluster.rendezvous",
    "llm_npu.doctor.probe_program",
    "scripts.upstream_tests.one_file",
)

VALUE = "{}"
SEVERAL_SENTENCES = re.compile(r"[.] +[A-Z`{]")
# What these write, programs of this project alone read, or it has no numbers.
NO_FILES = {
    "benchmarks.contenders",
    "benchmarks.ops.limits",
    "benchmarks.overlap.jobs",
    "benchmarks.overlap.worker",
    "benchmarks.worker",
    "llm_npu.cluster.without_run",
    "llm_npu.cluster.rendezvous",
    "llm_npu.data.text.chat_template",  # a filter of templates
    "llm_npu.doctor.probe_program",
    "llm_npu.launch.heartbeat.protocol",
    "llm_npu.launch.fake_process_group",
    "virtual_npu.call_marks",
    "virtual_npu.csrc.contracts_header",
    "paddle_fused.strict_json",
    "scripts.upstream_tests.one_file",
}


def too_long(sources: Sources) -> list[str]:
    """One line for each function with more than ``MOST`` positional parameters."""
    return [
        f"{module}, line {node.lineno}: {node.name} has {count} positional parameters"
        for module, tree in sources.trees.items()
        if below(module, *CHECKED)
        for node in statements(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (count := len(node.args.posonlyargs) + len(node.args.args)) > MOST
    ]


def plain_value_errors(sources: Sources) -> list[str]:
    """One line for each ValueError with a sentence that llm_npu raises."""
    return [
        f"{module}, line {node.lineno} raises ValueError"
        for module, tree in sources.trees.items()
        if below(module, "llm_npu")
        for node in statements(tree)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and ast.unparse(node.exc.func) == "ValueError"
    ]


def wrong_ends(sources: Sources) -> list[str]:
    """One line for each UserError of one sentence with a final period, or of several without one."""
    return [
        f"{module}, line {node.lineno}: {text!r:.80}"
        for module, tree in sources.trees.items()
        if below(module, *CHECKED)
        for node in statements(tree)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and ast.unparse(node.exc.func).endswith("UserError")
        for message in node.exc.args[:1]
        for text in map(literal, alternatives(message))
        if not text.endswith(VALUE)  # which may be a sentence
        and text.endswith(".") != bool(SEVERAL_SENTENCES.search(text[:-1]))
    ]


def alternatives(node: ast.expr) -> list[ast.expr]:
    """The expressions that a conditional expression chooses from."""
    if isinstance(node, ast.IfExp):
        return alternatives(node.body) + alternatives(node.orelse)
    return [node]


def literal(node: ast.expr) -> str:
    """The text of an expression, with VALUE in place of what is not a literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(literal, node.values))
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    return VALUE


def bare_json(sources: Sources) -> list[str]:
    """One line for each use of ``json.dump`` or ``json.dumps``, which write NaN."""
    return [
        f"{module}, line {node.lineno} writes JSON that may have NaN; use paddle_fused.strict_json"
        for module, tree in sources.trees.items()
        if below(module, "paddle_fused", "virtual_npu", *CHECKED) and module not in NO_FILES
        if b"json.dump" in sources.files[module].read_bytes()  # a walk over all expressions takes long
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("dump", "dumps")
        and ast.unparse(node) in ("json.dump", "json.dumps")
    ]


def too_large(root: Path) -> list[str]:
    """One line for each source file and each folder that has outgrown its room."""
    lines, folders = [], defaultdict(set)
    for room in ROOMS:
        for path in sorted((root / room).rglob("*")):
            if path.suffix in SOURCES:
                count = len(path.read_text().splitlines())
                if count > MOST_LINES:
                    lines.append(f"{path.relative_to(root)} has {count} lines")
                if path.name != "__init__.py":
                    folders[path.parent].add(path.stem)
    return lines + [
        f"{folder.relative_to(root)} has {len(modules)} modules"
        for folder, modules in folders.items()
        if len(modules) > MOST_MODULES
    ]


def commands_that_end_with_their_reader(sources: Sources) -> list[str]:
    """Programs that a user starts whose streams do not outlive their reader (``paddle_fused.streams``)."""
    programs = {
        module: "\n".join(map(ast.unparse, node.body))
        for module, tree in sources.trees.items()
        if below(module, *COMMANDS) and not below(module, *CHILDREN)
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
    }
    runners = ("command_line.run(", "program.run(", "sys.exit(main())", "sys.exit(main([")
    return [
        module
        for module, text in programs.items()
        if "sys.exit" in text and not any(name_of_runner in text for name_of_runner in runners)
    ]


@pytest.fixture(scope="module")
def project():
    return sources_of_the_project()


def test_signatures_of_the_project(project):
    assert too_long(project) == []


def test_errors_of_the_project(project):
    assert plain_value_errors(project) == []


def test_ends_of_messages(project):
    assert wrong_ends(project) == []


def test_wrong_ends_are_noticed(tmp_path):
    (tmp_path / "llm_npu").mkdir()
    texts = (
        "'one.'",
        "f'{x} is one'",
        "'One. ' 'Two'",
        "f'One. {x}.'",
        "f'{x}: ' + 'one.'",
        "f'a. {x}'",
        "'a' if x else 'b.'",
    )
    lines = [f"def f{number}(x): raise errors.UserError({text})" for number, text in enumerate(texts)]
    (tmp_path / "llm_npu/a.py").write_text("\n".join(lines))
    assert [line.partition(":")[0] for line in wrong_ends(Sources(tmp_path))] == [
        f"llm_npu.a, line {number}" for number in (1, 3, 5, 7)
    ]


def test_commands_of_the_project(project):
    assert commands_that_end_with_their_reader(project) == []


def test_commands_that_end_with_their_reader_are_noticed(tmp_path):
    (tmp_path / "scripts").mkdir()
    begin = "if __name__ == '__main__':\n"
    (tmp_path / "scripts/a.py").write_text(f"{begin}    sys.exit(command_line.run(main, sys.argv[1:]))\n")
    (tmp_path / "scripts/b.py").write_text(f"{begin}    sys.exit(main(sys.argv[1:]))\n")
    assert commands_that_end_with_their_reader(Sources(tmp_path)) == ["scripts.b"]


def test_json_of_the_project(project):
    assert bare_json(project) == []


def test_bare_json_is_noticed(tmp_path):
    (tmp_path / "llm_npu").mkdir()
    (tmp_path / "llm_npu/a.py").write_text("import json\nlist(map(json.dumps, []))\n")
    assert len(bare_json(Sources(tmp_path))) == 1


def test_plain_value_errors_are_noticed(tmp_path):
    (tmp_path / "llm_npu").mkdir()
    (tmp_path / "llm_npu/a.py").write_text("def f():\n    raise ValueError('no')\n")
    (tmp_path / "llm_npu/b.py").write_text("def f():\n    raise UserError('no')\n")
    assert plain_value_errors(Sources(tmp_path)) == ["llm_npu.a, line 2 raises ValueError"]


def test_long_signatures_are_noticed(tmp_path):
    (tmp_path / "scripts").mkdir()
    parameters = "a, b, c, d, e, f, g"
    (tmp_path / "scripts/a.py").write_text(f"def at_most({parameters}, *, h): pass\n")
    (tmp_path / "scripts/b.py").write_text(f"class A:\n    def more({parameters}, h): pass\n")
    assert too_long(Sources(tmp_path)) == ["scripts.b, line 2: more has 8 positional parameters"]


def test_sizes_of_the_project():
    """A large file or folder is a reason to look for a second idea in it, not an error."""
    for size in too_large(ROOT):
        warnings.warn(size, stacklevel=1)


def test_large_files_and_folders_are_noticed(tmp_path):
    (tmp_path / "llm_npu").mkdir()
    for number in range(MOST_MODULES):
        (tmp_path / f"llm_npu/a{number}.py").write_text("\n" * MOST_LINES)
    (tmp_path / "llm_npu/__init__.py").touch()
    (tmp_path / "llm_npu/a0.cc").touch()
    assert too_large(tmp_path) == []
    (tmp_path / "llm_npu/b.h").write_text("\n" * (MOST_LINES + 1))
    assert too_large(tmp_path) == [
        f"llm_npu/b.h has {MOST_LINES + 1} lines",
        f"llm_npu has {MOST_MODULES + 1} modules",
    ]
