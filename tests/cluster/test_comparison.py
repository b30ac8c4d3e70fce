"""What differs between machines: the table, and runs with planted comparison."""

import fnmatch
import json
import shutil
from dataclasses import replace

import pytest
import run_inputs
import virtual_machines

from llm_npu.cluster import comparison
from llm_npu.core import machines
from llm_npu.doctor import Setup

FACTS = comparison.Facts(
    "machine0", {"CANN": "8.0.RC2", "data": "ab" * 32}, {}, {}, 1000.0, 4 * 2**30, 8 * 2**30
)


HASHES = ("?" * comparison.HASH,) * 2


def of(*facts):
    return {f"machine{number}": own for number, own in enumerate(facts)}


def equal(**changed):
    return replace(FACTS, equal={**FACTS.equal, **changed})


def test_equal_machines_have_no_table():
    later = replace(FACTS, host="machine1", clock=FACTS.clock + comparison.CLOCK, memory=None)
    assert comparison.table(of(FACTS, later)) == ""
    note = comparison.note(of(later, replace(FACTS, disk=2**30)))
    assert note.startswith("2 machines with equal ")
    assert note.endswith("memory: 4.0 GiB on machine1; least free disk: 1.0 GiB on machine1")


def test_each_difference_is_named_with_its_machines():
    odd = replace(equal(CANN="8.1.RC1", data="cd" * 32, HCCL_ALGO="ring"), clock=FACTS.clock - 61)
    assert comparison.table(of(FACTS, odd, FACTS)).splitlines() == [
        "  what       value         machines",
        "  CANN       8.0.RC2       machine0, machine2",
        "             8.1.RC1       machine1",
        "  data       abababababab  machine0, machine2",
        "             cdcdcdcdcdcd  machine1",
        "  HCCL_ALGO  not set       machine0, machine2",
        "             ring          machine1",
        "  clock      +0 s          machine0, machine2",
        "             -61 s         machine1",
    ]


def test_what_another_machine_says_is_printable():
    odd = replace(equal(CANN="\x1b[2J8.1\n"), host="\x1b]0;title\x07")
    here = [machines.Machine(f"10.0.0.{number}", range(number, number + 1)) for number in (0, 1)]
    table = comparison.table(comparison.by_name(here, [FACTS, odd]))
    assert table.replace("\n", "").isprintable() and r"\x1b[2J8.1\n" in table and r"\x1b]0;title\x07" in table


def test_many_machines_and_long_values_are_shortened():
    table = comparison.table(of(*[FACTS] * 9, equal(CANN="8" * 100)))
    rows = [line.split(maxsplit=2) for line in table.splitlines()]
    assert rows[1] == ["CANN", "8.0.RC2", "machine0, machine1, machine2, machine3 and 5 more"]
    assert rows[2] == ["8" * 57 + "...", "machine9"]


def test_reported_values_may_differ():
    threads = [replace(FACTS, reported={"OMP_NUM_THREADS": number}) for number in ("4", "8")]
    assert comparison.table(of(*threads)) == ""
    assert comparison.note(of(*threads)).endswith("; OMP_NUM_THREADS is 4 on machine0, 8 on machine1")


def test_the_variables_that_are_compared():
    compared = {"HCCL_ALGO": "ring", "FLAGS_npu_jit_compile": "0", "VIRTUAL_NPU_STRICT": "1"}
    own = {"HCCL_IF_IP": "10.0.0.1", "HCCL_SOCKET_IFNAME": "eth0", "FLAGS_selected_npus": "1"}
    own |= {"ASCEND_HOME_PATH": "/opt/cann", "ASCEND_RT_VISIBLE_DEVICES": "0,1"}
    own |= {"ASCEND_VISIBLE_DEVICES": "1,0"}
    secret = {"ASCEND_API_KEY": "secret", "FLAGS_token": "secret"}
    assert comparison.variables({**compared, **own, **secret, "HOME": "/root"}) == compared


def test_the_facts_of_this_machine(tmp_path):
    setup = Setup({"VIRTUAL_NPU_CANN": "8.1.RC1"}, "virtual_npu", tmp_path / "not" / "there", root=tmp_path)
    facts = comparison.gather(setup, {"data": 1})
    assert {name: facts.equal[name] for name in ("device", "CANN", "driver", "data")} == {
        "device": "virtual",
        "CANN": "8.1.RC1",
        "driver": comparison.NOT_INSTALLED,
        "data": "1",
    }
    assert facts.memory is None and facts.disk > 0
    assert facts.equal["code"] == comparison.code()
    assert facts.cards == {}


def prepared(folder, **fields):
    """The words of a short run, whose text and model each machine has for itself."""
    inputs = folder / "inputs"
    inputs.mkdir()
    arguments = {**run_inputs.inputs(inputs), "max_seq_length": 32, "split": "80,20,0", "max_steps": 1}
    for number in range(2):  # each machine's own, by a relative path
        for name in ("text", "model"):
            shutil.copytree(inputs / name, folder / str(number) / name)
    return run_inputs.words({**arguments, "output_dir": "out", **fields})


def started(two_machines, folder, plant=lambda other: None, environments=({}, {}), **fields):
    """A run of two machines with one rank each; ``plant`` changes the files of the second one."""
    words = prepared(folder, **fields)
    plant(folder / "1")
    return virtual_machines.launch(two_machines, words, folder, ranks=1, environments=environments)


def check(job, **differing):
    """Both machines are refused, and rank 0 alone has the table, in which only ``differing`` differ: {what:
    the value of each machine}."""
    assert job.wait(240) == [2, 2], job.text()
    first, second = ((job.logs / str(number) / "workerlog.0").read_text() for number in range(2))
    endpoints = ",".join(f"{machine.address}:1" for machine in job.machines)
    places = machines.read({"PADDLE_TRAINER_ENDPOINTS": endpoints}).all
    names = [f"{machine.name} {place}" for machine, place in zip(job.machines, places, strict=True)]
    head, table = first[first.index("error: ") :].split("\n", 1)
    assert head.startswith("error: the machines of this run differ; ")
    rows = [" ".join(line.split()) for line in table.splitlines()]
    patterns = ["what value machines"]
    for what, values in differing.items():
        patterns += [f"{what} {values[0]} {names[0]}", f"{values[1]} {names[1]}"]
    assert len(rows) == len(patterns) and all(map(fnmatch.fnmatch, rows, patterns)), first
    error = second.splitlines()[-1]
    assert error.startswith("error: the machines of this run differ; ") and str(places[0]) in error, second


@pytest.mark.slow
@pytest.mark.parametrize(
    "what, values",
    [("CANN", {"VIRTUAL_NPU_CANN": "8.1.RC1"}), ("HCCL_DETERMINISTIC", {"HCCL_DETERMINISTIC": "true"})],
)
def test_another_environment_is_named(two_machines, tmp_path, what, values):
    job = started(two_machines, tmp_path, environments=[{}, values])
    shown = {"CANN": ("8.0.0", "8.1.RC1"), "HCCL_DETERMINISTIC": ("not set", "true")}
    check(job, **{what: shown[what]})


@pytest.mark.slow
def test_another_data_file_is_named(two_machines, tmp_path):
    def plant(other):
        with (other / "text" / "heapq.py").open("a") as file:
            file.write("# one line more\n")

    job = started(two_machines, tmp_path, plant, input_dir="text")
    check(job, data=HASHES, samples=HASHES)


@pytest.mark.slow
def test_another_tokenizer_is_named(two_machines, tmp_path):
    def plant(other):
        file = other / "model" / "tokenizer.json"
        content = json.loads(file.read_text())
        content["model"]["merges"].pop()
        file.write_text(json.dumps(content))

    job = started(two_machines, tmp_path, plant, tokenizer_name_or_path="model")
    check(job, tokenizer=HASHES, samples=HASHES)


@pytest.mark.slow
def test_equal_machines_train_until_one_has_another_cache(two_machines, tmp_path):
    """Each machine with text, cache and output of its own; then a cache has another content than its text."""
    fields = {"input_dir": "text", "tokenizer_name_or_path": "model", "data_cache": "cache"}
    words = prepared(tmp_path, **fields, overwrite_output_dir="true")
    job = virtual_machines.launch(two_machines, words, tmp_path, ranks=2)
    assert job.wait(300) == [0, 0], job.text()
    log = (job.logs / "0" / "workerlog.0").read_text()
    assert "2 machines with equal " in log
    built = [sorted(path.name for path in (tmp_path / number / "cache").iterdir()) for number in "01"]
    assert built[0] == built[1] and len(built[0]) == 1, "one folder, no lock, nothing unfinished"
    (file,) = (tmp_path / "1" / "cache").glob("tokens-*/tokens.bin")
    content = bytearray(file.read_bytes())
    content[:] = content[2:4] + content[:2] + content[4:]  # the first two tokens, of 16 bits
    assert content != file.read_bytes()
    file.write_bytes(content)
    check(virtual_machines.launch(two_machines, words, tmp_path, ranks=1), samples=HASHES)


@pytest.mark.slow
@pytest.mark.parametrize("resuming", [0, 1])
def test_a_checkpoint_that_one_machine_resumes_is_named(two_machines, tmp_path, resuming):
    own = [["--resume_from_checkpoint", "auto"] if number == resuming else [] for number in range(2)]
    job = virtual_machines.launch(two_machines, prepared(tmp_path), tmp_path, ranks=2, own_arguments=own)
    assert job.wait(240) == [2, 2], job.text()
    first, second = ("auto" if number == resuming else "not given" for number in range(2))
    values = (
        f"{first} on {two_machines[0].address} (ranks 0 to 1), "
        f"{second} on {two_machines[1].address} (ranks 2 to 3)"
    )
    for log in job.logs.rglob("workerlog.*"):
        error = log.read_text().splitlines()[-1]
        assert error.startswith("error: --resume_from_checkpoint ") and values in error, job.text()
