"""Who may import whom: scripts, benchmarks -> commands -> tools -> layers -> virtual_npu -> operators.

The rules are checked on the source text, so they hold for code that no test runs; each rule is shown to
notice a violation in a made-up source tree.
"""

import ast
import functools
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from places import ROOT

pytestmark = pytest.mark.sampled

PACKAGES = ("paddle_fused", "virtual_npu", "llm_npu", "scripts", "benchmarks", "tests")
SUPPLIED = "virtual_npu.site"  # the package paddle_custom_device, which stands on sys.path by itself
TOP = ("scripts", "benchmarks", "tests")
# Where the libraries are, which Paddle there is, the command line: for all packages.
GROUND = (
    "paddle_fused.libraries",
    "paddle_fused.paddle_release",
    "paddle_fused.built_for",
    "paddle_fused.cann_installation",
    "paddle_fused.cann_releases",
    "paddle_fused.streams",
    "paddle_fused.command_line",
)
PUBLIC = {
    f"paddle_fused{name}"
    for name in (
        "",
        ".cann_installation",
        ".host_memory",
        ".libraries",
        ".streams",
        ".command_line",
        ".paddle_release",
        ".info",
        ".operator_hooks",
        ".indexed_assignment",
        ".parity",
        ".masks",
        ".compat",
        ".context_parallel.exchange",
        ".context_parallel",
        ".context_parallel.gathered",
        ".context_parallel.heads",
        ".context_parallel.kernels",
        ".context_parallel.ring",
        ".context_parallel.zigzag",
        ".context_parallel.ulysses",
        ".expert_parallel",
        ".contracts",
        ".registry",
        ".strict_json",
        ".ops.layer",
    )
} | {"virtual_npu", "virtual_npu.call_marks", "virtual_npu.source_lines"}
UNDER_OPERATORS = tuple(
    f"paddle_fused.{name}"
    for name in (
        "libraries",
        "paddle_release",
        "built_for",
        "cann_installation",
        "cann_releases",
        "streams",
        "command_line",
        "dispatch",
        "registry",
        "contracts",
        "ascend",
        "native",
        "host_memory",
        "devices",
        "captured",
        "indexed_assignment",
        "sharding",
    )
)
# Commands that compare the operators of the card, or of the virtual NPU where there is none.
EITHER_DEVICE = ("paddle_fused.parity",)
OPERATORS = ("paddle_fused.ops", "paddle_fused.masks", "paddle_fused.compat")
# The layers of llm_npu, the lowest first: each imports only those before it, and itself.
LAYERS = tuple(
    f"llm_npu.{name}"
    for name in (
        "core",
        "cann",
        "report",
        "device",
        "patches",
        "models",
        "config",
        "data",
        "surgery",
        "launch",
        "training",
        "parallel",
        "inference",
        "console",
    )
)
# What users start: they attach the tools to a run. Only scripts and benchmarks import them.
COMMANDS = ("llm_npu.commands", "llm_npu.__main__", "llm_npu.doctor.__main__")
# An environment has one of these, so only their own folders import them, patches, and the trainer's adapter.
LIBRARIES_OF_MODELS = ("paddlenlp", "paddleformers")
KNOW_THE_LIBRARY = ("llm_npu.patches", "llm_npu.training.upstream_trainer")
# What users call, and the commands attach to a run: imported by no layer.
TOOLS = tuple(
    f"llm_npu.{name}"
    for name in ("plan", "profiling", "doctor", "dtypes", "numerics", "acceptance", "formers", "cluster")
)
BEFORE_PADDLE = (
    "paddle_fused",
    "paddle_fused.contracts",
    "virtual_npu",
    "virtual_npu.__main__",
    "llm_npu.__main__",
    "llm_npu.commands",
    "llm_npu.device",
    "llm_npu.dtypes.__main__",
    "llm_npu.dtypes.any_program",
    "llm_npu.commands.doctor",
    "llm_npu.doctor.checks",
    "llm_npu.doctor.probe_program",
)


def below(module: str, *packages: str) -> bool:
    """Whether ``module`` is one of ``packages`` or inside one."""
    return any(module == package or module.startswith(package + ".") for package in packages)


def reason_against(importer: str, imported: str) -> str | None:
    """Why ``importer`` may not import ``imported``, both modules of this project; None if it may."""
    if below(importer, "tests"):
        return None
    if below(imported, *TOP):
        siblings = any(below(importer, top) and below(imported, top) for top in TOP)
        return None if siblings else ", ".join(TOP) + " are at the top, each for itself"
    operations = ("paddle_fused", "virtual_npu")
    if below(importer, "llm_npu", *TOP) and below(imported, *operations) and imported not in PUBLIC:
        return "only public modules of paddle_fused and virtual_npu are for others"
    if below(importer, *operations) and below(imported, "llm_npu"):
        return "operations know tensors, not models"
    if below(importer, "paddle_fused") and below(imported, "virtual_npu") and importer not in EITHER_DEVICE:
        return "paddle_fused also serves machines with a card; virtual_npu stands on it"
    if below(importer, SUPPLIED):
        return None if below(imported, SUPPLIED) else "the supplied package stands alone"
    read_by_build = ("paddle_fused.contracts",) if below(importer, "virtual_npu.csrc") else ()
    if below(importer, "virtual_npu") and not below(imported, "virtual_npu", *GROUND, *read_by_build):
        return "the virtual NPU stands alone, but for where its library is and what it is for"
    if below(importer, *OPERATORS) and not below(imported, *OPERATORS, *UNDER_OPERATORS):
        return "an operator uses " + ", ".join(UNDER_OPERATORS)
    if below(importer, *UNDER_OPERATORS) and not below(imported, *UNDER_OPERATORS):
        return "operators stand on this, not the other way"
    if below(importer, *LAYERS, *TOOLS) and below(imported, *COMMANDS) and importer not in COMMANDS:
        return "commands stand on this, not the other way"
    if below(importer, *LAYERS):
        if below(imported, *TOOLS):
            return "the commands attach the tools; no layer imports them"
        own, other = (next((r for r in LAYERS if below(m, r)), None) for m in (importer, imported))
        if other and LAYERS.index(other) > LAYERS.index(own):
            return f"{other} stands on {own}, not the other way"
    elif importer.startswith("llm_npu.") and not below(importer, *TOOLS, *COMMANDS):
        return "a module of llm_npu stands in a layer or a tool: " + ", ".join((*LAYERS, *TOOLS))
    return None


def reason_against_library(importer: str, library: str) -> str | None:
    """Why ``importer`` may not import ``library``, which another environment lacks; None if it may."""
    if below(importer, "tests", f"llm_npu.models.{library}", *KNOW_THE_LIBRARY):
        return None
    return f"only llm_npu.models.{library}, {' and '.join(KNOW_THE_LIBRARY)} know that library"


class Sources:
    """The Python modules below ``root`` and what each imports."""

    def __init__(self, root: Path):
        self.files = {}
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                parts = path.relative_to(root).with_suffix("").parts
                self.files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        self.trees = {module: ast.parse(path.read_bytes()) for module, path in self.files.items()}

    @functools.cache  # noqa: B019 # the few instances live as long as the tests
    def imports(self, module: str, at_import_time: bool = False) -> frozenset[str]:
        """Modules that ``module`` imports: this project's as such, others by the dotted name in the source.

        With ``at_import_time`` without those inside functions and those for type checkers only.
        """
        imported = set()
        for node in statements(self.trees[module], at_import_time):
            if isinstance(node, ast.Import):
                imported |= {self._resolve(alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(module, node)
                imported |= {self._resolve(f"{origin}.{alias.name}") for alias in node.names}
        return frozenset(imported)

    def _origin(self, module: str, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module
        levels = node.level - (self.files[module].name == "__init__.py")
        parts = module.split(".")
        base = parts[: len(parts) - levels]
        return ".".join([*base, node.module] if node.module else base)

    def _resolve(self, name: str) -> str:
        # `from a.b import c` names the module a.b.c if there is such a file, else something inside a.b.
        candidate = name
        while candidate:
            if candidate in self.files:
                return candidate
            candidate = candidate.rpartition(".")[0]
        return name

    def closure(self, modules) -> dict[str, set[str]]:
        """The project's modules that importing ``modules`` runs, each with what it imports from others."""
        waiting, reached = list(modules), {}
        while waiting:
            module = waiting.pop()
            if module in reached or module not in self.files:
                continue
            imported = self.imports(module, at_import_time=True)
            reached[module] = {name for name in imported if name not in self.files}
            parents = [module.rpartition(".")[0]] if "." in module else []
            waiting += [name for name in imported if name in self.files] + parents
        return reached


def statements(tree: ast.AST, at_import_time: bool = False):
    """The statements below ``tree``, without expressions: a tenth of the nodes."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for node in getattr(tree, name, ()):
            if at_import_time and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if at_import_time and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                for other in node.orelse:
                    yield from (other, *statements(other, True))
                continue
            yield node
            yield from statements(node, at_import_time)


def wrong_imports(sources: Sources) -> list[str]:
    """One line for each import that breaks a rule."""
    lines = []
    for importer in sources.files:
        for imported in sorted(sources.imports(importer) & sources.files.keys()):
            if imported != importer and (reason := reason_against(importer, imported)):
                lines.append(f"{importer} imports {imported}: {reason}")
        for library in LIBRARIES_OF_MODELS:
            reason = reason_against_library(importer, library)
            if reason and any(below(imported, library) for imported in sources.imports(importer)):
                lines.append(f"{importer} imports {library}: {reason}")
    operators = [module for module in sources.files if below(module, "paddle_fused.ops")]
    read = [m for m in operators if m.endswith("contract") or sources.files[m].name == "__init__.py"]
    for module, others in sources.closure([*BEFORE_PADDLE, *read]).items():
        for other in sorted(others):
            if other.partition(".")[0] not in sys.stdlib_module_names:
                lines.append(f"{module} imports {other}: it runs before paddle may be imported")
    return lines


def cycles(sources: Sources) -> list[list[str]]:
    """The groups of modules of which each imports, maybe by way of others, all of its group."""
    return _cycles({m: sources.imports(m) & sources.files.keys() - {m} for m in sources.files})


def package_cycles(sources: Sources) -> list[list[str]]:
    """The groups of packages of llm_npu, each of which imports, maybe through others, all of its group."""
    imports = {}
    for module in sources.files:
        if package := _package(module):
            imported = {_package(name) for name in sources.imports(module) & sources.files.keys()}
            imports.setdefault(package, set()).update(imported - {package, ""})
    return _cycles(imports)


def _package(module: str) -> str:
    """llm_npu.plan for llm_npu.plan.answer; "" outside the packages of llm_npu."""
    if module in COMMANDS[1:] or not below(module, *LAYERS, *TOOLS, *COMMANDS[:1]):
        return ""
    return ".".join(module.split(".")[:2])


def _cycles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    waiting = dict(imports)
    while free := [module for module, imported in waiting.items() if not imported & waiting.keys()]:
        for module in free:
            del waiting[module]
    reached = {module: _reached(module, waiting) for module in waiting}
    groups = {tuple(sorted(m for m in reached[module] if module in reached[m])) for module in waiting}
    return [list(group) for group in sorted(groups) if group]


def _reached(module: str, imports: Mapping[str, set[str]]) -> set[str]:
    reached, waiting = set(), [module]
    while waiting:
        new = imports[waiting.pop()] & imports.keys() - reached
        reached |= new
        waiting += new
    return reached


@functools.cache
def sources_of_the_project() -> Sources:
    return Sources(ROOT)


@pytest.fixture(scope="module")
def project():
    return sources_of_the_project()


def test_imports_of_the_project(project):
    assert wrong_imports(project) == []


def test_the_project_has_no_import_cycle(project):
    assert cycles(project) == []
    assert package_cycles(project) == []


@pytest.fixture
def tree(tmp_path):
    """A made-up source tree that keeps the rules; the returned function adds a file to it."""

    def add(file: str, text: str = "") -> Path:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path

    for package in (
        "paddle_fused",
        "paddle_fused/ops",
        "paddle_fused/ops/rms_norm",
        "virtual_npu",
        "llm_npu",
        "scripts",
        "benchmarks",
        "tests",
    ):
        add(f"{package}/__init__.py")
    for module in (
        "paddle_fused/dispatch",
        "virtual_npu/settings",
        "llm_npu/surgery/swap",
        "llm_npu/parallel/trainer",
        "llm_npu/plan/answer",
        "llm_npu/commands/train",
        "scripts/run",
        "benchmarks/report",
    ):
        add(f"{module}.py")
    add("paddle_fused/ops/rms_norm/op.py", "import paddle\nfrom paddle_fused.dispatch import FusedOp\n")
    add("paddle_fused/ops/rms_norm/contract.py", "import re\n")
    add("virtual_npu/activation.py", "import os\nfrom .settings import SETTINGS\n")
    add(
        "llm_npu/training/trainer.py",
        "import paddle\nimport virtual_npu\nfrom paddle_fused import rms_norm\n",
    )
    add("llm_npu/training/upstream_trainer.py", "import paddlenlp.trainer\nimport paddleformers.trainer\n")
    add("llm_npu/models/paddlenlp/adapter.py", "import paddlenlp.peft\n")
    add("llm_npu/device.py", "def later():\n    import paddle\n")
    assert wrong_imports(Sources(tmp_path)) == []
    return add


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("paddle_fused/ops/swiglu/op.py", "import llm_npu.training.trainer", "not models"),
        ("paddle_fused/ops/swiglu/op.py", "import virtual_npu", "stands on it"),
        ("paddle_fused/ascend.py", "import virtual_npu", "stands on it"),
        ("paddle_fused/info.py", "import virtual_npu", "stands on it"),
        ("paddle_fused/dispatch.py", "from .ops.rms_norm import op", "not the other way"),
        (
            "paddle_fused/dispatch.py",
            "def f():\n    from paddle_fused.ops.rms_norm.op import x",
            "not the other way",
        ),
        ("virtual_npu/settings.py", "from paddle_fused.ops.rms_norm import op", "stands alone"),
        ("virtual_npu/site/paddle_custom_device/a.py", "import paddle_fused", "stands alone"),
        ("llm_npu/data/rows.py", "from paddle_fused.dispatch import FusedOp", "only public"),
        ("llm_npu/data/rows.py", "from paddle_fused import dispatch", "only public"),
        ("scripts/bench.py", "from virtual_npu.settings import SETTINGS", "only public"),
        ("llm_npu/data/rows.py", "import scripts.run", "at the top"),
        ("llm_npu/data/rows.py", "from benchmarks import report", "at the top"),
        ("scripts/a.py", "from benchmarks.report import table", "each for itself"),
        ("benchmarks/a.py", "import scripts.run", "each for itself"),
        ("benchmarks/a.py", "from paddle_fused.dispatch import FusedOp", "only public"),
        ("llm_npu/training/step.py", "from llm_npu.parallel import trainer", "not the other way"),
        ("llm_npu/surgery/apply.py", "def f():\n    from ..training.trainer import x", "not the other way"),
        ("llm_npu/training/step.py", "from llm_npu.plan.answer import answer", "attach the tools"),
        ("llm_npu/plan/answer.py", "from llm_npu.commands import train", "commands stand on this"),
        ("llm_npu/training/step.py", "from paddlenlp.trainer import TrainerCallback", "know that library"),
        ("llm_npu/data/rows.py", "def f():\n    import paddleformers.data", "know that library"),
        ("scripts/a.py", "from paddleformers import trainer", "know that library"),
        ("llm_npu/models/paddlenlp/lora.py", "import paddleformers.peft", "know that library"),
        ("llm_npu/text.py", "from llm_npu.training import trainer", "stands in a layer"),
        ("llm_npu/device.py", "from paddle.base import core", "before paddle"),
        ("llm_npu/device.py", "try:\n    import numpy\nexcept ImportError:\n    pass", "before paddle"),
        ("llm_npu/__init__.py", "from .training.trainer import Trainer", "before paddle"),
        ("paddle_fused/ops/rms_norm/contract.py", "from .op import rms_norm", "before paddle"),
        ("paddle_fused/ops/rms_norm/__init__.py", "import paddle", "before paddle"),
        ("paddle_fused/__init__.py", "from .ops.rms_norm.op import rms_norm", "before paddle"),
    ],
)
def test_wrong_imports_are_noticed(tree, file, text, reason):
    lines = wrong_imports(Sources(tree(file, text + "\n")))
    assert lines and all(reason in line for line in lines), lines


def test_cycles_are_noticed(tree):
    tree("scripts/a.py", "from . import b")
    tree("scripts/b.py", "def f():\n    from scripts.c import x")
    assert cycles(Sources(tree("scripts/c.py", "import run"))) == []
    assert cycles(Sources(tree("scripts/c.py", "from .a import y"))) == [
        ["scripts.a", "scripts.b", "scripts.c"]
    ]


def test_cycles_of_packages_are_noticed(tree):
    tree("llm_npu/doctor/command.py", "def f():\n    from llm_npu.cluster.machines import x")
    tree("llm_npu/cluster/machines.py", "from llm_npu.profiling import y")
    tree("llm_npu/profiling/__init__.py", "")
    tree("llm_npu/doctor/checks.py")
    assert package_cycles(Sources(tree("llm_npu/cluster/hosts.py", "import os"))) == []
    sources = Sources(tree("llm_npu/profiling/read.py", "from ..doctor.checks import z"))
    assert cycles(sources) == []
    assert package_cycles(sources) == [["llm_npu.cluster", "llm_npu.doctor", "llm_npu.profiling"]]


def test_what_runs_before_paddle_does_not_import_it(run_python):
    code = (
        "import sys, paddle_fused, virtual_npu, llm_npu.device, llm_npu.config\n"
        "sys.exit(' '.join(m for m in sys.modules if m.startswith(('paddle.', 'paddlenlp'))) or 0)"
    )
    result = run_python("-c", code)
    assert result.returncode == 0, result.stderr
