"""The plan of PaddleOCR-VL against the dry run: memory, operations, and the time of the recorded calls."""

import json
import re
from pathlib import Path

import pytest
from dry_runs import flops, operation
from places import ROOT
from vision_recipes import PUBLISHED_MODEL

from llm_npu.core import cards
from llm_npu.models.paddleformers.vision_language import TEXT, VISION_TOWER
from llm_npu.plan import __main__ as command
from llm_npu.plan import cost, vision
from llm_npu.plan.layout import Layout
from llm_npu.plan.step_model.stage import causal
from llm_npu.training.dry_run.journal import Call

pytestmark = pytest.mark.slow

PROGRAM = ROOT / "examples/ocr/count_memory.py"
FROZEN = ("--freeze_config", "freeze_vision freeze_aligner")
SETTINGS = {"full": (), "frozen": FROZEN, "frozen tower": ("--freeze_config", "freeze_vision"),
            "LoRA": ("--lora_rank", "8")}  # fmt: skip
LINES, PAGE = (8, 24, 32, 64), (1, 120, 120, 1000)  # images, rows, columns, tokens of text
STEPS = 2  # of the dry run
SMALL = {"vocab_size": 512}  # the peak is in the backward pass of the vision tower
TOLERANCE = 0.03  # that of a plan


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED_MODEL))
    return tmp_path


def counted(run_python, sizes, *arguments, **environment) -> float:
    """The peak of a step in a dry run, in bytes."""
    names = ("--images", "--rows", "--columns", "--text")
    words = [word for pair in zip(names, sizes, strict=True) for word in pair]
    environment |= {"VIRTUAL_NPU_DRY": "1"}
    done = run_python("-m", "llm_npu.formers", PROGRAM, *words, *arguments, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return float(re.search(r"peak ([\d.,]+) MiB", done.stdout)[1].replace(",", "")) * 2**20


def plan(folder: Path, sizes, *arguments) -> vision.Plan:
    images, rows, columns, text = map(str, sizes)
    words = ["--model_name_or_path", str(folder), "--cards", "1", "--per_device_train_batch_size", images]
    words += ["--image_patches", f"{rows}x{columns}", "--text_tokens", text, "--recompute", *arguments]
    return vision.plan_of(command.parser().parse_args(words))


@pytest.mark.parametrize("sizes", [LINES, PAGE], ids=["lines", "page"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_memory(run_python, folder, setting, sizes):
    peak = counted(run_python, sizes, *SETTINGS[setting])
    planned = plan(folder, sizes, *SETTINGS[setting]).memory().peak_memory_bytes
    assert planned == pytest.approx(peak, rel=TOLERANCE)


def test_memory_of_a_small_vocabulary(run_python, folder):
    (folder / "config.json").write_text(json.dumps(PUBLISHED_MODEL | SMALL | {"image_token_id": 7}))
    peak = counted(run_python, PAGE, "--model", folder)
    memory = plan(folder, PAGE).memory()
    assert memory.peak_memory_bytes == pytest.approx(peak, rel=TOLERANCE)


def test_operations_and_time(run_python, folder, tmp_path):
    journal = tmp_path / "journal"
    counted(run_python, PAGE, VIRTUAL_NPU_JOURNAL=str(journal))
    calls = [call for call in recorded(journal) if call.placement == "npu"]
    parts = plan(folder, PAGE).operations()
    length = PAGE[1] * PAGE[2] // 4 + PAGE[3]
    # As journals count: attention to all tokens.
    parts[TEXT] = [
        op._replace(flops=op.flops / causal(length)) if op.kind == "attention" else op for op in parts[TEXT]
    ]
    planned = [operation for part in parts.values() for operation in part]
    convolution = [op for op in parts[VISION_TOWER] if op.name.startswith("patches") and op.kind == "matmul"]
    assert STEPS * flops(planned, "attention") == flops_of(calls, "attention")
    products = flops(planned, "matmul") - flops(convolution, "matmul")
    # The angles of the rotary tables are small products, too.
    assert STEPS * products == pytest.approx(flops_of(calls, "matmul"), rel=1e-6)
    generated, counts = of_card(planned), of_card(map(operation, calls))
    assert STEPS * sum(generated.values()) == pytest.approx(sum(counts.values()), rel=0.1)


def recorded(journal: Path) -> list[Call]:
    events = map(json.loads, journal.read_text().splitlines())
    return [
        Call(**{name: event[name] for name in ("name", "dtype", "placement", "allocated")}, **tensors(event))
        for event in events
        if event["event"] == "operator"
    ]


def tensors(event: dict) -> dict[str, tuple]:
    return {
        name: tuple((dtype, tuple(shape)) for dtype, shape in event[name]) for name in ("inputs", "outputs")
    }


def of_card(operations) -> dict[str, float]:
    """Seconds of forward and backward passes, without the update."""
    spent = cost.tally([*operations], Layout(cards=1), cards.card("910b"), cost.fitted()).compute
    return {kind: seconds for kind, seconds in spent.items() if kind != "optimizer"}


def flops_of(calls, kind: str) -> int:
    return sum(call.flops for call in calls if call.kind == kind)
