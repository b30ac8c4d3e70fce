"""The tables of docs/coverage.md: where a training calls the operators, and what runs on a card.

``python tests/shared/fused_models/coverage.py`` writes them, for the models of the installed library.

A row comes from the record of a training step on the virtual NPU, and the callers from the sources.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

SHARED = Path(__file__).resolve().parents[1]
ROOT = SHARED.parents[1]
sys.path[:0] = [str(SHARED), str(ROOT)]  # it is a program, too

from fused_models import table  # noqa: E402
from paddle_fused import registry  # noqa: E402

PAGE = ROOT / "docs/coverage.md"
END = "<!-- end -->"
COMMAND = "python tests/shared/fused_models/coverage.py"
TOOLS = ("acceptance", "doctor", "dtypes", "numerics", "plan", "profiling")  # they train nothing
# Operators that another one computes, which the record names.
RECORDED_AS = {"apply_rotary": "rotary_mul", "flashmask_attention": "flash_attention"}


class Row(NamedTuple):
    """``layers``: the classes of layers whose forward calls the operator, or what else does."""

    operator: str
    model: str
    layers: str
    backend: str
    mode: str


# ---- callers, from the sources


def callers(root: Path = ROOT) -> dict[str, list[str]]:
    """The modules of ``llm_npu`` that call each operator, by the operator's name."""
    names = {operator.public: name for name, operator in registry.operators().items()}
    operators: dict[str, set[str]] = {}
    for path in sorted((root / "llm_npu").rglob("*.py")):
        module = path.relative_to(root / "llm_npu")
        text = path.read_text(encoding="utf-8")
        if module.parts[0] in TOOLS or "paddle_fused" not in text:
            continue
        for public in _used(ast.parse(text)):
            if public in names:
                operators.setdefault(names[public], set()).add(f"llm_npu/{module}")
    return {name: sorted(modules) for name, modules in operators.items()}


def _used(tree: ast.AST) -> Iterator[str]:
    """The names of ``paddle_fused`` in a module, but those in examples of the backend report."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name.endswith("example"):
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "paddle_fused":
            yield from (alias.name for alias in node.names)
        of_package = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if of_package and node.value.id == "paddle_fused":
            yield node.attr
        yield from _used(node)


# ---- rows, from records of training steps


def rows() -> list[Row]:
    """Of a training step of each model of the installed library, in bfloat16 on the virtual NPU."""
    from llm_npu import patches

    patches.apply()  # as in a training
    module = {"PaddleNLP": "families", "PaddleFormers": "formers"}[table.title()]
    models = {}
    for family in importlib.import_module(f"fused_models.{module}").FAMILIES:
        models.setdefault(family.title, family)
    steps = [row for family in models.values() for row in _of_model(family)]
    if table.title() == "PaddleNLP":
        steps += _of_loss(models["Llama 1, 2 and 3"])
    else:
        dropout = _of_model(models["ERNIE-4.5"], hidden_dropout_prob=0.1)
        steps += [row for row in dropout if row.operator.startswith("dropout")]
    return sorted(dict.fromkeys(steps), key=lambda row: row.operator)


def _of_model(family, **attributes) -> list[Row]:
    import paddle

    import paddle_fused
    from fused_models.comparison import BATCH, LENGTH, loss_and_logits, random_batch
    from llm_npu.surgery import apply_fused_kernels
    from llm_npu.surgery.batch import Batch
    from llm_npu.surgery.explain import explain

    model = family.build("bfloat16", **attributes)
    model.train()
    switches = {"use_fused_linear_cross_entropy": True, "use_fused_add_rms_norm": True}
    report = apply_fused_kernels(model, **switches)
    classes = {path: type(layer).__name__ for path, layer in model.named_sublayers(include_self=True)}
    layers: dict[str, dict[str, None]] = {"fused_adamw": {"the optimizer": None}}
    for line in explain(model, report, Batch(BATCH, LENGTH, "bfloat16")):
        layers.setdefault(line.operator, {})[f"`{classes[line.layers]}`"] = None
    upstream = paddle.optimizer.AdamW(parameters=model.parameters(), multi_precision=True)
    optimizer = paddle_fused.FusedAdamW.from_adamw(upstream)
    paddle_fused.reset_dispatch_log()
    batch = random_batch()
    if family.criterion is None:
        loss = model(input_ids=paddle.to_tensor(batch.ids), labels=paddle.to_tensor(batch.labels))[0]
    else:
        loss, _ = loss_and_logits(family, model, batch, "all")
    loss.backward()
    optimizer.step()
    return _recorded(family.title, {name: ", ".join(names) for name, names in layers.items()})


def _of_loss(family) -> list[Row]:
    """Of auto-parallel's loss."""
    import paddle

    import paddle_fused
    from fused_models.comparison import random_batch
    from llm_npu.parallel.loss import CausalLoss

    batch = random_batch()
    model = family.build("bfloat16")
    paddle_fused.reset_dispatch_log()
    CausalLoss(model)(paddle.to_tensor(batch.ids), paddle.to_tensor(batch.labels)).backward()
    return _recorded(family.title, {"linear_cross_entropy": "the loss, with auto-parallel"})


def _recorded(model: str, layers: dict[str, str]) -> list[Row]:
    import paddle_fused

    return [
        Row(row.operator, model, layers.get(row.operator, "the model"), row.backend, row.mode)
        for row in paddle_fused.dispatch_log()
    ]


# ---- the page


def markdown_of_callers() -> str:
    """A row for each operator of the registry."""
    modules = callers()
    lines = ["| operator | called in | switch |", "|---|---|---|"]
    for name, operator in sorted(registry.operators().items()):
        where = ", ".join(f"`{module}`" for module in modules[name])
        switch = f"`{operator.switch}`" if operator.switch else ""
        lines.append(f"| [`{name}`](operators/{name}.md) | {where} | {switch} |")
    return "\n".join(lines) + "\n"


def markdown(table_rows: Iterable[Row]) -> str:
    """A row for each operator and model of the installed library."""
    lines = ["| operator | model | called by | on a card |", "|---|---|---|---|"]
    for row in table_rows:
        on_a_card = f"`{row.backend}`: {row.mode}" if row.mode else f"`{row.backend}`"
        lines.append(f"| `{row.operator}` | {row.model} | {row.layers} | {on_a_card} |")
    return "\n".join(lines) + "\n"


def begin(name: str) -> str:
    """The line before a table."""
    return f"<!-- {name}: {COMMAND} -->\n"


def written(name: str) -> str:
    """A table in the page."""
    return PAGE.read_text(encoding="utf-8").partition(begin(name))[2].partition(END)[0]


def operators_written(library: str) -> set[str]:
    """The operators in the table of the models of a library."""
    return set(re.findall(r"^\| `(\w+)` ", written(f"models of {library}"), re.MULTILINE))


def main() -> int:
    import virtual_npu

    virtual_npu.activate()  # before anything imports paddle
    import paddle

    paddle.set_device("npu")
    page = PAGE.read_text(encoding="utf-8")
    for name, rows_of in (
        ("callers", markdown_of_callers()),
        (f"models of {table.title()}", markdown(rows())),
    ):
        before, mark, rest = page.partition(begin(name))
        page = before + mark + rows_of + END + rest.partition(END)[2]
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
