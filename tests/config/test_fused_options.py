"""The switches of the fused operators, the names of other launchers, and --config."""

import pytest
from places import ROOT

from llm_npu import config
from llm_npu.config import FusedArguments
from llm_npu.config.written import REFUSED
from llm_npu.training.model import config_for

pytestmark = pytest.mark.sampled

SWITCHES = (
    "use_npu_fusion_attention",
    "use_fused_rms_norm",
    "use_fused_rope",
    "use_fused_swiglu",
    "use_fused_moe",
    "use_fused_adamw",
    "use_fused_dropout_add_layer_norm",
    "use_fused_geglu",
    "use_fused_add_rms_norm",
)
BY_SIZE = "use_fused_linear_cross_entropy"  # without the flag, the run decides
DEMO = ROOT / "demo.yaml"
# The file of arguments in openMind's documentation of fused operators, without deepspeed.
OPENMIND = """
disable_fused_options: false
use_npu_fusion_attention: true
use_fused_rms_norm: false
use_fused_rope: true
use_fused_swiglu: true
model_id: llama-tiny
stage: pt
do_train: true
finetuning_type: full
dataset: text_zh_data
cutoff_len: 1024
packing: true
output_dir: saves/full
logging_steps: 1
save_steps: 20000
overwrite_output_dir: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
max_steps: 5000
seed: 1234
"""


@pytest.fixture
def file(tmp_path):
    """A function that writes a file of arguments and returns its name."""

    def write(text):
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return str(path)

    return write


def switched_off(*argv):
    return [name for name, on in config.parse(argv).fused.switches().items() if on is False]


@pytest.mark.parametrize("name", SWITCHES)
def test_each_operator_has_a_switch_in_the_file_and_on_the_line(file, name):
    assert switched_off(f"--{name}", "false") == switched_off(f"--no_{name}") == [name]
    assert switched_off(file(f"{name}: false")) == [name]
    assert switched_off(file(f"{name}: false"), f"--{name}") == []
    assert switched_off() == []


def test_disable_fused_options_is_stronger_than_the_switches(file):
    assert tuple(FusedArguments().switches()) == (*SWITCHES, BY_SIZE)
    assert not any(config.parse(["--disable_fused_options", f"--{BY_SIZE}"]).fused.switches().values())
    assert tuple(switched_off("--disable_fused_options", "--use_fused_rope")) == (*SWITCHES, BY_SIZE)
    assert switched_off(file("disable_fused_options: true"), "--disable_fused_options", "false") == []


@pytest.mark.parametrize("argv", [[], ["--use_fused_rms_norm", "--use_fused_rope", "--use_flash_attention"]])
@pytest.mark.parametrize("device", ["npu", "cpu"])
@pytest.mark.paddlenlp
def test_paddlenlps_own_fused_paths_stay_off(argv, device):
    model = config_for(config.parse([*argv, "--device", device]))
    assert not (model.use_flash_attention or model.use_fused_rms_norm or model.use_fused_rope)


def test_the_file_of_openminds_documentation_is_read(file):
    run = config.parse(["--config", file(OPENMIND)])
    assert (run.model.model_name_or_path, run.data.input_dir) == ("llama-tiny", "text_zh_data")
    assert (run.data.max_seq_length, run.training.max_steps, run.training.seed) == (1024, 5000, 1234)
    assert [name for name, on in run.fused.switches().items() if on is False] == ["use_fused_rms_norm"]
    assert run.notes == (
        "--model_id is read as --model_name_or_path",
        "--dataset is read as --input_dir",
        "--cutoff_len is read as --max_seq_length",
    )
    assert {"model_name_or_path", "input_dir", "max_seq_length"} <= set(run.explicit)


def test_no_name_of_another_launcher_hides_a_flag():
    aliases = [alias for flag in config.flags().values() for alias in flag.aliases]
    assert {"model_id", "cutoff_len", "gradient_checkpointing"} <= set(aliases)
    assert len(set(aliases)) == len(aliases)
    assert not config.flags().keys() & {*aliases, *REFUSED}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_another_way_here_is_refused_by_name(file, name):
    for argv in ([f"--{name}", "1"], [f"--{name}=1"], [file(f"{name}: 1")]):
        with pytest.raises(ValueError, match=f"^--{name} ") as caught:
            config.parse(argv)
        assert REFUSED[name] in str(caught.value)


def test_names_on_the_line_override_those_of_the_file_whatever_they_are(file):
    run = config.parse(["--config", file("cutoff_len: 64"), "--max_seq_length", "32"])
    assert (run.data.max_seq_length, run.notes) == (32, ("--cutoff_len is read as --max_seq_length",))
    assert config.parse([file("max_seq_length: 64"), "--cutoff_len=32"]).data.max_seq_length == 32
    for argv in (["--no_use_flash_attention"], ["--use_flash_attention", "false"]):
        assert switched_off(*argv) == ["use_npu_fusion_attention"]


def test_two_names_of_one_argument_are_refused(file):
    names = "--max_seq_length .* cutoff_len and max_seq_length"
    with pytest.raises(ValueError, match=f"command line .*{names}"):
        config.parse(["--cutoff_len", "8", "--max_seq_length", "8"])
    with pytest.raises(ValueError, match=f"file .*{names}"):
        config.parse([file("cutoff_len: 8\nmax_seq_length: 8")])
    with pytest.raises(ValueError, match="under two names"):
        config.parse(["--use_flash_attention", "--no_use_npu_fusion_attention"])


def test_config_names_the_file_wherever_it_stands(file):
    name = file("max_steps: 7\nseed: 3\ndevice: cpu")
    for argv in ([name], ["--config", name], [f"--config={name}"], ["--seed", "5", "--config", name]):
        assert config.read(argv).early.device == "cpu"
        run = config.parse(argv)
        assert (run.training.max_steps, run.training.seed) == (7, 5 if "--seed" in argv else 3)
        assert "config" not in run.explicit


def test_one_file_of_arguments_is_enough(file):
    name = file("seed: 3")
    for argv in ([name, "--config", name], ["--config", name, "--config", name]):
        with pytest.raises(ValueError, match="two argument files"):
            config.parse(argv)
    for argv in (["--config"], ["--config="], ["--seed", "1", "--config"]):
        with pytest.raises(ValueError, match="--config: expected"):
            config.parse(argv)
    with pytest.raises(ValueError, match="is neither a flag"):
        config.parse(["--config", "run.txt"])


def test_the_demo_has_every_switch_and_no_name_to_translate():
    run = config.parse(["--config", str(DEMO)])
    assert set(SWITCHES) < set(run.explicit)
    assert [name for name, _ in run.ineffective] == [
        "use_fused_dropout_add_layer_norm",
        "use_fused_geglu",
        "use_fused_moe",
    ]
    config_for(run)
