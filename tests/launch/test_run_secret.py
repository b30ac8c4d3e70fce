"""The secret of a run: where it comes from, and what is refused."""

import pytest

from llm_npu.core import machines
from llm_npu.core.errors import UserError

SECRET = "0123456789abcdef"


def test_a_secret_from_a_variable_or_a_file(tmp_path):
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    assert machines.secret({}) == machines.secret({machines.SECRET: "", machines.SECRET_FILE: ""}) == ""
    assert machines.secret({machines.SECRET: SECRET}) == SECRET
    assert machines.secret({machines.SECRET_FILE: str(file)}) == SECRET


def _file(folder, content, mode):
    file = folder / "secret"
    file.write_bytes(content)
    file.chmod(mode)
    return {machines.SECRET_FILE: str(file)}


BAD = {
    "short": (lambda folder: {machines.SECRET: "short"}, "LLM_NPU_RUN_SECRET has 5 characters; accepted: 16"),
    "two": (
        lambda folder: {machines.SECRET: SECRET, machines.SECRET_FILE: "x"},
        "are both set; set one of them",
    ),
    "none": (lambda folder: {machines.SECRET_FILE: str(folder / "none")}, "cannot be read: "),
    "NUL": (lambda folder: {machines.SECRET_FILE: "a\0b"}, "cannot be read: "),
    "a folder": (lambda folder: {machines.SECRET_FILE: str(folder)}, "which is not a file; accepted: "),
    "a device": (lambda folder: {machines.SECRET_FILE: "/dev/zero"}, "which is not a file; accepted: "),
    "for all": (
        lambda folder: _file(folder, SECRET.encode(), 0o644),
        "which other users may read or write; run",
    ),
    "empty": (lambda folder: _file(folder, b"\n", 0o600), "has 0 characters; accepted: 16 to 4096 printable"),
    "binary": (
        lambda folder: _file(folder, b"\xff\0" * 16, 0o600),
        "has 32 characters; accepted: 16 to 4096",
    ),
    "long": (lambda folder: _file(folder, b"x" * 9999, 0o600), "has 4098 characters; accepted: 16 to 4096"),
    "lines": (lambda folder: _file(folder, b"0123456789\n0123456789", 0o600), "on one line"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_secrets(tmp_path, name):
    environ, sentence = BAD[name]
    with pytest.raises(UserError) as refused:
        machines.secret(environ(tmp_path))
    assert sentence in str(refused.value) and SECRET not in str(refused.value)
