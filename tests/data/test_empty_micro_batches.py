"""A micro batch without labels adds exactly nothing, in whichever library of models is installed."""

from pathlib import Path

import numpy as np
import paddle
import pytest
import run_inputs

import paddle_fused
from llm_npu import config, device, patches
from llm_npu.data.packing import IGNORED
from llm_npu.data.pipeline import Datasets
from llm_npu.models.families import FAMILIES
from llm_npu.training.run import Feature, Run

pytestmark = pytest.mark.sampled

LENGTH, STEPS = 16, 2
VOCABULARY = run_inputs.LLAMA["vocab_size"]
CHANGED = {"vocab_size": VOCABULARY, "num_hidden_layers": 1}
WITHOUT_DROPOUT = {"gpt": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}}
QUICK = ("mistral", "qwen3")  # of either library


class Rows:
    """``labelled_rows`` samples, then ``empty`` ones, whose labels are all ignored."""

    def __init__(self, labelled_rows: int, empty: int = 0):
        tokens = np.random.default_rng(0).integers(3, VOCABULARY, (labelled_rows + empty, LENGTH + 1))
        self._ids, self._labels = tokens[:, :-1], tokens[:, 1:].copy()
        self._labels[labelled_rows:] = IGNORED
        self.tokens = self._ids.size

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self._ids[index], "labels": self._labels[index]}

    def labelled(self, index: int) -> int:
        return int((self._labels[index] != IGNORED).sum())


class OwnRows(Feature):
    def __init__(self, rows: Rows):
        self._rows = rows

    def on_data(self, run: Run) -> None:
        run.samples = Datasets(self._rows, self._rows, self._rows)


def trained(rows: Rows, *argv) -> tuple[dict, dict]:
    """Losses by step, and weights, of a training on ``rows``."""
    read = config.read([str(word) for word in argv])
    chosen = device.select(read.early.device)
    with paddle.utils.unique_name.guard():
        run = Run(read.build(), read.early, chosen)
        run.attach(OwnRows(rows))
        run.build()
        run.train()
    losses, _ = run_inputs.losses(Path(run.trainer.args.output_dir))
    return losses, {name: value.numpy() for name, value in run.trainer.model.state_dict().items()}


@pytest.mark.parametrize("fused_loss", [False, True])
@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=() if family in QUICK else pytest.mark.slow) for family in FAMILIES]
)
def test_a_step_is_that_of_its_labelled_micro_batch(family, fused_loss, tmp_path):
    patches.apply()
    tiny = FAMILIES[family].presets[FAMILIES[family].tiny]
    fields = {"num_attention_heads": 4, "num_key_value_heads": 2, **tiny, **CHANGED}
    fields |= WITHOUT_DROPOUT.get(family, {})
    arguments = {
        **run_inputs.inputs(tmp_path, model_type=family, **fields),
        **{"max_seq_length": LENGTH, "max_steps": STEPS, "save_steps": STEPS, "logging_steps": 1},
        **{"per_device_train_batch_size": 1, "bf16": "false", "do_eval": "false", "learning_rate": 1e-2},
        "use_fused_linear_cross_entropy": str(fused_loss).lower(),
    }
    words = run_inputs.words(arguments)
    paddle_fused.reset_dispatch_log()
    expected = trained(Rows(1), *words, "--output_dir", tmp_path / "one")
    several = ("--gradient_accumulation_steps", "2", "--output_dir", tmp_path / "two")
    result = trained(Rows(1, empty=1), *words, *several)
    assert list(result[0]) == list(range(1, STEPS + 1)) and result[0] == expected[0]
    for name, weight in expected[1].items():
        np.testing.assert_array_equal(result[1][name], weight, err_msg=name)
    ran = {call.operator for call in paddle_fused.dispatch_log()}
    assert ("linear_cross_entropy" in ran) is fused_loss
