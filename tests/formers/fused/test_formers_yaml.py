"""The backend report of a run whose switches stand in a YAML file."""

import pytest
import yaml
from small_runs import SCRIPT

OPERATORS = {  # {operator: (its switch, where it runs, the reason of a row if nothing is given)}
    "add_rms_norm": ("use_fused_add_rms_norm", "post_attention_layernorm", "off by default"),
    "linear_cross_entropy": ("use_fused_linear_cross_entropy", "lm_head", "take less than"),
    "fused_adamw": ("use_fused_adamw", "optimizer", None),
}
SHORT = {"max_steps": 1, "save_steps": 1, "do_eval": False}


@pytest.mark.slow
@pytest.mark.parametrize("value", [True, False, None])
@pytest.mark.parametrize("family", ["llama", "qwen3", "ernie4_5", "qwen3_moe"])
def test_rows_are_those_of_the_file(run_python, inputs, tmp_path, family, value):
    words = inputs(family)
    settings_of_run = {
        name.removeprefix("--"): word for name, word in zip(words[::2], words[1::2], strict=True)
    }
    settings_of_run |= {**SHORT, "bf16": True, "output_dir": str(tmp_path / "out")}
    if value is not None:
        settings_of_run |= {switch: value for switch, _, _ in OPERATORS.values()}
    file = tmp_path / "run.yaml"
    file.write_text(
        yaml.safe_dump({name: setting for name, setting in settings_of_run.items() if name != "eval_steps"})
    )
    done = run_python(SCRIPT, "--config", file)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert any("first step as predicted" in line for line in lines), lines
    for operator, (switch, where, reason) in OPERATORS.items():
        rows = [line for line in lines if where in line and f" {operator} " in line]
        ran = any(line.startswith(f"ran      {operator} bfloat16: ascend") for line in lines)
        assert rows and ran is bool(value or (value is None and reason is None)), (operator, lines)
        if ran:
            assert all(f" {operator} " in row and " ascend " in row for row in rows), rows
        else:
            expected = f"switched off by {switch}" if value is False else reason
            assert all(expected in row for row in rows), rows
