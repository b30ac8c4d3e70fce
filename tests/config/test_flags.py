"""What a flag is: its field, PaddleNLP's own flags, the help, and answers without a framework."""

import dataclasses
import importlib.util
import typing

import pytest
from places import ROOT

from llm_npu import config
from llm_npu.config.conflicts import TRACKERS
from llm_npu.config.flag import BOOL_OR_TEXT, NoEffect, flag, flags_of
from llm_npu.config.library_flags import library_flags
from llm_npu.config.training import TrainingFlags
from llm_npu.models import library
from llm_npu.models.library import names

SCRIPT = ROOT / "scripts" / "run_llama_npu.py"
MODEL_FLAG = "--fuse_sequence_parallel_allreduce"  # the library lists it with its models
# Runs the program in sys.argv[1:] and says which frameworks that has imported.
WATCHED = """
import runpy, sys
sys.argv.pop(0)
try:
    if sys.argv[0] == "-m":
        sys.argv.pop(0)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    print("code", end.code)
print("imported", sorted({"paddle", "paddlenlp", "paddleformers"} & set(sys.modules)))
"""


@dataclasses.dataclass
class Made:
    """Flags of a test."""

    rate: float = flag(0.5, "Help.", at_least=0, below=1, aliases=("speed",))
    mode: str | None = flag(None, "Help.", choices=("a", "b"))
    depth: int = flag(
        2,
        "Help.",
        at_least=1,
        no_effect=(NoEffect("--mode is b", lambda run: run.mode == "b"), NoEffect("always")),
    )


def test_a_flag_knows_what_its_field_says():
    flags_made = flags_of(Made, "Section")
    assert [(flag_made.kind, flag_made.default) for flag_made in flags_made.values()] == [
        (float, 0.5),
        (str, None),
        (int, 2),
    ]
    assert flags_made["rate"].aliases == ("speed",)
    for name, value in (("rate", 0), ("rate", 0.99), ("mode", None), ("mode", "a"), ("depth", 1)):
        flags_made[name].check(value)
    for name, value, words in (
        ("rate", 1.0, "--rate is 1.0, but must be at least 0 and below 1"),
        ("rate", -0.1, "--rate is -0.1"),
        ("rate", float("nan"), "--rate is nan"),
        ("mode", "c", "--mode is 'c', but must be a or b"),
        ("depth", 0, "--depth is 0, but must be 1 or more"),
        ("depth", float("inf"), "--depth is inf"),
    ):
        with pytest.raises(ValueError, match=words):
            flags_made[name].check(value)
    values = config.read([]).values
    values.mode = "b"
    assert flags_made["depth"].without_effect(values) == "--mode is b"
    values.mode = "a"
    assert flags_made["depth"].without_effect(values) == "always"
    assert flags_made["rate"].without_effect(values) is None


def test_every_flag_has_help_and_a_default_within_its_limits():
    for each_flag in config.flags().values():
        if each_flag.default is not None and each_flag.name != "max_evaluate_steps":  # -1 stands for all
            dataclasses.replace(each_flag, default=None).check(each_flag.default)
        assert each_flag.help.endswith(".")
        assert each_flag.item[0] in (bool, int, float, str, BOOL_OR_TEXT)


def test_flags_are_the_fields_of_the_librarys_dataclass():
    """Names, types and defaults of the checked-in list, and of the installed library."""
    from llm_npu.config.build import PretrainArguments

    fields = {
        names.RENAMED.get(field.name, field.name): field for field in dataclasses.fields(PretrainArguments)
    }
    hints = typing.get_type_hints(PretrainArguments)
    listed = dict(library_flags())
    if library.installed() == library.PADDLENLP:
        own = {field.name for field in dataclasses.fields(TrainingFlags)}
        own |= {alias for name in own for alias in config.flags()[name].aliases} & fields.keys()
        assert listed.keys() | own == {name for name, field in fields.items() if field.init}
    else:
        listed.pop("recompute")  # build translates it; the other arguments of PaddleFormers are not flags
        listed.pop("sharding")  # stage1 there
    for name, listed_flag in listed.items():
        factory, hint = fields[name].default_factory, hints[fields[name].name]
        default = fields[name].default if factory is dataclasses.MISSING else factory()
        kinds = {str(kind).replace("typing.List", "list") for kind in (hint, *typing.get_args(hint))}
        kinds = {str(str)} if any("IntervalStrategy" in kind for kind in kinds) else kinds
        assert listed_flag.default == getattr(default, "value", default) and str(listed_flag.kind) in kinds, (
            name
        )


@pytest.mark.paddlenlp
def test_the_trackers_are_paddlenlps():
    from paddlenlp.trainer.integrations import INTEGRATION_TO_CALLBACK

    assert set(TRACKERS) == set(INTEGRATION_TO_CALLBACK)
    installed = [name for name, package in TRACKERS.items() if importlib.util.find_spec(package)]
    assert "visualdl" in installed
    for trackers in (["all"], ["none"], installed):
        assert config.read(["--report_to", *trackers]).values.report_to == trackers
    for name in set(TRACKERS) - set(installed):
        with pytest.raises(ValueError, match=f"--report_to {name} needs the package {TRACKERS[name]}"):
            config.read(["--report_to", name])


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ([SCRIPT, "--help"], 0, ["--min_learning_rate", "--input_dir", "--seed", MODEL_FLAG]),
        ([SCRIPT, "--nproc", "2", "--help"], 0, ["--min_learning_rate"]),
        ([SCRIPT, "--max_stps", "3"], 2, ["did you mean --max_steps?"]),
        ([SCRIPT, "--lora_rank", "0"], 2, ["--lora_rank is 0"]),
        pytest.param(
            [SCRIPT, "--stage", "dpo"],
            2,
            ["--stage dpo trains PaddleFormers' models", '".[paddleformers]"'],
            marks=pytest.mark.paddlenlp,
        ),
        ([SCRIPT, "--model_name_or_path", "lama-tiny"], 2, ["Did you mean llama-tiny?"]),
        ([SCRIPT, "--nproc", "2", "--tensor_parallel_degree", "3"], 2, ["does not divide the 2 processes"]),
        (["-m", "llm_npu.plan", "--help"], 0, ["usage"]),
    ],
    ids=lambda value: " ".join(map(str, value[1:])) if isinstance(value, list) else None,
)
@pytest.mark.sampled(4)
def test_help_and_refusals_import_no_framework(run_python, argv, code, words):
    done = run_python("-c", WATCHED, *argv)
    assert done.stdout.endswith(f"code {code}\nimported []\n"), done.stdout + done.stderr
    for word in words:
        assert word in done.stdout + done.stderr
