"""The published files for PaddleOCR-VL train a tiny model of its classes on npu, with ``device: npu`` added.

Each run is a process of ``llm-npu formers train`` that takes ten steps.
"""

import json
from pathlib import Path

import front_ends
import pytest
import yaml
from front_ends import finished, train
from vision_recipes import EXAMPLE, LORA, configuration, evaluations, make_task, with_template, write_template

pytestmark = pytest.mark.slow

*FUSED, _, _ = front_ends.of_page("train")
OPERATORS = {"flash_attention", "rms_norm", "rotary_mul", "swiglu"}
# Prints the text of the tokens of the first conversation: question and answer.
TOKENS = """
import json
import sys

from llm_npu import patches

patches.apply()
from paddleformers.cli.hparams import parser
from paddleformers.datasets.template.template import get_template_and_fix_tokenizer
from paddleformers.transformers import AutoProcessor, AutoTokenizer

template, model, data = sys.argv[1:]
parser._load_custom_template(template)
tokenizer, processor = (kind.from_pretrained(model) for kind in (AutoTokenizer, AutoProcessor))
settings = dict.fromkeys(("tool_format", "default_system", "enable_thinking"))
settings |= {"tokenizer": tokenizer, "template": "paddleocr_vl_v15"}
template = get_template_and_fix_tokenizer(settings)
record = json.loads(open(data).readline())
inputs = template.mm_plugin.get_mm_inputs(
    record["images"], [], [], processor, imglens=[1], vidlens=[0], audlens=[0], batch_ids=None
)
media = record["images"], [], [], inputs, processor
messages = template.mm_plugin.process_messages(record["messages"], *media)
((question, answer),) = template.encode_multiturn(tokenizer, messages, None, None)
print(json.dumps([tokenizer.decode(question), tokenizer.decode(answer)]))
"""


@pytest.fixture(scope="module")
def task(run_python, tmp_path_factory):
    """The folder of a small task: images, conversations and the model."""
    return make_task(run_python, "paddleocr_vl", tmp_path_factory.mktemp("ocr"))


@pytest.fixture(scope="module")
def start(run_python, task, tmp_path_factory):
    """A function that runs the published file with changes to its end: (process, logs, folder)."""

    def of(devices: str = "0", **changes):
        folder = tmp_path_factory.mktemp("job")
        content = configuration("paddleocr_vl", task, **changes)
        return *train(run_python, FUSED, folder / "run", content, ASCEND_RT_VISIBLE_DEVICES=devices), folder

    return of


@pytest.fixture(scope="module")
def run(start):
    """A function that trains for ten steps with changes of the published file: (folder, Finished)."""

    def of(devices: str = "0", **changes):
        done, logs, folder = start(devices, **changes)
        return folder, finished(done, logs)

    return of


@pytest.fixture(scope="module")
def full(run):
    return run()


def read(run_python, model: Path, task: Path) -> list[str]:
    """The lines of ``read_words.py`` about the held-out words."""
    words = EXAMPLE / "read_words.py"
    done = run_python("-m", "llm_npu.formers", words, model, task / "eval.jsonl", "--max_new_tokens", "6")
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("./images/", "exact match"))]


def learns(result) -> bool:
    return result.losses[-1] < 0.7 * result.losses[0]


def test_full_fine_tuning_with_evaluation(run_python, full, task):
    folder, result = full
    assert learns(result), result.losses
    (ran,) = result.ran
    assert {operator for operator, _ in ran} == OPERATORS
    assert all(how.startswith("ascend") for how in ran.values()), ran
    assert len(evaluations(folder / "run/log")) >= 2
    lines = read(run_python, folder / "run/checkpoint", task)
    assert len(lines) == 9 and lines[-1].startswith("exact match: ")


@pytest.mark.parametrize(
    "changes",
    [{"packing": True, "padding_free": False}, {"freeze_config": "freeze_vision freeze_aligner"}],
    ids=["packing", "frozen vision tower and projector"],
)
def test_variants_of_the_published_file(run, changes):
    _, result = run(**changes)
    assert learns(result), result.losses
    assert {operator for operator, _ in result.ran[0]} == OPERATORS


@pytest.fixture
def template(tmp_path):
    return write_template(tmp_path)


def test_the_template_of_paddleocr_vl_1_5_trains(run, template):
    _, result = run(**with_template(template))
    assert learns(result), result.losses
    assert {operator for operator, _ in result.ran[0]} == OPERATORS


def test_the_tokens_of_paddleocr_vl_1_5(run_python, template, task):
    """An image of four letters, 2 x 8 patches, has four tokens."""
    program = template.with_name("tokens.py")
    program.write_text(TOKENS)
    done = run_python(program, template, task / "model", task / "eval.jsonl", cwd=task)
    assert done.returncode == 0, done.stderr
    image = "<|IMAGE_START|>" + 4 * "<|IMAGE_PLACEHOLDER|>" + "<|IMAGE_END|>"
    question = f"<|begin_of_sentence|>User: {image}OCR:\nAssistant:\n"
    answer = json.loads((task / "eval.jsonl").read_text().splitlines()[0])["messages"][1]["content"]
    assert json.loads(done.stdout.splitlines()[-1]) == [question, answer]


def test_resume(start, full):
    """The weights, the optimizer and the schedule of step 5; the augmentation draws other images."""
    folder, whole = full
    done, logs, _ = start(resume_from_checkpoint=str(folder / "run/checkpoint/checkpoint-5"))
    text = (logs / "workerlog.0").read_text(errors="replace")
    assert done.returncode == 0, text[-3000:]
    losses = {int(step): float(loss) for loss, step in front_ends.LOSS.findall(text)}
    assert sorted(losses) == [6, 7, 8, 9, 10]
    assert losses[6] < (whole.losses[0] + whole.losses[5]) / 2, (losses, whole.losses)


def test_two_ranks(run):
    _, result = run("0,1", gradient_accumulation_steps=1)
    assert learns(result), result.losses
    assert all({operator for operator, _ in rank} == OPERATORS for rank in result.ran)


def test_two_ranks_share_the_text_model(run):
    """Without workers, a thread reads the images, and the ranks must draw the same augmentation."""
    changes = {"do_eval": False, "evaluation_strategy": "no", "dataloader_num_workers": 0}
    changes |= {"gradient_accumulation_steps": 1, "learning_rate": 2.0e-4, "min_lr": 1.0e-5}
    _, whole = run(**changes)
    _, shared = run("0,1", tensor_model_parallel_size=2, **changes)
    losses = shared.losses, whole.losses
    assert front_ends.distance(*losses) <= front_ends.CEILING, losses


def test_lora_and_the_merged_adapter(run_python, run, task):
    folder, result = run(**LORA, learning_rate=2.0e-2)
    assert result.losses[-1] < 0.9 * result.losses[0], result.losses
    export = {"fine_tuning": "LoRA", "model_name_or_path": str(task / "model"), "device": "npu"}
    export |= {"lora": True, "output_dir": str(folder / "run/checkpoint")}
    export["copy_custom_file_list"] = "preprocessor_config.json"
    (folder / "export.yaml").write_text(yaml.safe_dump(export))
    done = run_python("-m", "llm_npu.formers", "export", folder / "export.yaml", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = read(run_python, folder / "run/checkpoint/export", task)
    assert len(lines) == 9 and lines[-1].startswith("exact match: ")
