"""The failures that are known, against logs from public threads: what is named, and in which order.

``failure_logs`` has a file for each topic of the catalogue, and two logs by themselves, which the
documentation explains. The set ``development`` is what the patterns were written from. ``held_out`` was split
off at random before; ``fourth`` was collected when the patterns stood, and nothing was changed for it.
"""

import collections
import json
import re

import labelled_logs
import pytest
from places import ROOT

from llm_npu.commands.doctor import _parser
from llm_npu.doctor import explain
from llm_npu.doctor.explain import catalogue, shown

pytestmark = pytest.mark.sampled

KNOWN = catalogue.catalogue()
NAMES = {failure.name for failure in KNOWN.failures}
ROLE = {failure.name: failure.role for failure in KNOWN.failures}


def labelled(wanted: str) -> dict[str, tuple[str, str]]:
    """Name of each log of the set ``wanted`` -> (the failure it shows, the log)."""
    logs = {}
    for log in labelled_logs.read():
        assert log.source.startswith("https://github.com/") and log.because, log.name
        assert log.expected in NAMES | {"none"}, log.name
        if log.of == wanted:
            logs[log.name] = log.expected, log.text
    return logs


def first(log: str) -> str:
    named = explain.explain_text(log).named
    return named[0].failure.name if named else "none"


@pytest.mark.parametrize(("folder", "least"), [("development", 0.98), ("held_out", 0.9), ("fourth", 0.9)])
def test_the_first_that_is_named_is_what_the_thread_says(folder, least):
    logs = labelled(folder)
    others = {name: (label, first(log)) for name, (label, log) in logs.items() if first(log) != label}
    assert len(others) <= (1 - least) * len(logs), others


@pytest.mark.parametrize("folder", ["development", "held_out", "fourth"])
def test_no_other_cause_is_named(folder):
    """What is more general is none: a library that is missing, without whose it is."""
    wrong = {
        name: (label, named)
        for name, (label, log) in labelled(folder).items()
        if (named := first(log)) not in (label, "none", "library-missing") and ROLE[named] == "cause"
    }
    assert not wrong


def test_a_log_stands_in_one_folder_and_there_are_enough():
    sources = [log.source for log in labelled_logs.read()]
    often = [source for source, times in collections.Counter(sources).items() if times > 2]
    assert len(sources) >= 40 and not often


def test_the_cause_comes_before_what_follows_from_it():
    log = "\n".join(
        [
            "[rank1] EI0002: The wait execution of the Notify register times out.",
            "[rank2] RuntimeError: ACL stream synchronize failed, error code:507048",
            "[rank0] RuntimeError: NPU out of memory. Tried to allocate 30.00 MiB (NPU 3; 60.96 GiB total)",
        ]
    )
    named = explain.explain_text(log).named
    assert [explained.failure.name for explained in named] == [
        "device-memory",
        "hccl-execute",
        "stream-timeout",
    ]
    assert [explained.line for explained in named] == [3, 1, 2]


def test_of_two_causes_the_earlier_one_comes_first():
    lines = ["libascendcl.so: cannot open shared object file", "NPU out of memory. Tried to allocate 1 MiB"]
    there = explain.explain_text("\n".join(lines)).named
    back = explain.explain_text("\n".join(reversed(lines))).named
    assert [explained.failure.name for explained in there] == [
        explained.failure.name for explained in reversed(back)
    ]
    assert len(there) == 2


def test_of_a_chain_of_exceptions_the_first_is_the_cause():
    try:
        try:
            raise OSError("libhccl.so: cannot open shared object file: No such file or directory")
        except OSError as error:
            raise RuntimeError("call aclnnCast failed, error code is 561103") from error
    except RuntimeError as error:
        assert "cann-library-missing" in explain.of_error(error).splitlines()[0]


@pytest.mark.parametrize(
    "code",
    [f"EI{number:04}" for number in range(1, 16)]
    + ["EJ0001", "EJ0003", "EE1001", "EL0004", "EZ1001"]
    + ["100000", "107002", "161001", "161002", "207001", "361001", "500002", "507015", "507033", "561002"],
)
def test_a_code_is_decoded(code):
    text = f"{code}: it failed" if code[0] == "E" else f"call failed, error code is {code}"
    (named, *_) = explain.explain_text(text).named
    assert named.code == code and named.failure.codes[code]


@pytest.mark.parametrize(
    "line",
    [
        "step 507015/600000: loss 2.1234  lr 1.00e-05",
        "loss 5.07015, 507015 tokens/s",
        "sha256: 0xEI0006ab",
        "/data/507015/EI00061.bin was read",
        "[ERROR] a run of the user's own program failed: 7",
    ],
)
def test_other_numbers_are_none(line):
    explanation = explain.explain_text(line)
    assert not explanation.named and not explanation.notes
    assert explain.exit_code(explanation) == 0
    text = explain.text(explanation)
    assert text.startswith("unknown") and "Attach" in text


def test_a_code_that_is_not_listed_is_a_note():
    explanation = explain.explain_text("EZ9999: Inner Error!\nE19999: Inner Error!\nerror code is 507999")
    assert not explanation.named
    assert [note.split(": ")[1].split()[0] for note in explanation.notes] == ["EZ9999", "E19999", "507999"]


@pytest.mark.parametrize("failure", KNOWN.failures, ids=lambda failure: failure.name)
def test_a_failure_is_complete(failure):
    assert failure.role in catalogue.ROLES
    assert failure.meaning.endswith(".") and failure.causes and failure.run and failure.sources
    assert failure.codes or failure.texts
    assert all(re.fullmatch(r"[1-5]\d{5}|E[A-Z0-9]\d{4}", code) for code in failure.codes)
    assert all(source.startswith("https://") for source in failure.sources)
    assert all(command.strip() and shows.strip() for command, shows in failure.run)
    for command, _ in failure.run:
        for script in re.findall(r"python (scripts/\S+\.py)", command):
            assert (ROOT / script).exists()
        if match := re.search(r"python -m llm_npu\.doctor(.*)", command):
            _parser().parse_args(match[1].partition(">")[0].split())


def test_names_are_given_once():
    assert len(NAMES) == len(KNOWN.failures)
    assert {failure.role for failure in KNOWN.failures} == set(catalogue.ROLES) == set(explain.LABELS)


def test_an_installation_has_the_data():
    (rooms,) = re.findall(r'f"{room}/data/\*\.json" for room in \((.*?)\)', (ROOT / "setup.py").read_text())
    with_data = {
        folder.parent.name for folder in (ROOT / "llm_npu").glob("*/data") if any(folder.glob("*.json"))
    }
    assert set(re.findall(r'"(\w+)"', rooms)) == with_data
    assert {file.stem for file in catalogue.DATA.glob("*.json")} == set(catalogue.FILES)


def test_json():
    explanation = explain.explain_text("error code is 507015\nEI0002: times out")
    shown = json.loads(explain.as_json(explanation))
    assert shown["exit_code"] == 1
    assert [failure["name"] for failure in shown["failures"]] == ["kernel-exception", "hccl-execute"]
    assert {"role", "line", "said", "code", "meaning", "causes", "run", "sources"} < set(shown["failures"][0])


def test_an_explanation_fits_a_line():
    for log in labelled_logs.read():
        explanation = explain.explain_text(log.text)
        for line in explain.text(explanation).splitlines():
            assert len(line) <= shown.WIDTH or line.split()[0] in ("run", "source") or line[:9].isspace()
