"""The documents of text, code and .jsonl: which files, in which order, and what is refused."""

import json
import os

import pytest

from llm_npu.config import DataArguments
from llm_npu.data.pipeline import find
from llm_npu.data.text.corpus import corpus, standard_library

SENTENCES = "One two three. Grüße aus Köln — 你好 🙂.\n"


def test_documents_of_a_folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_bytes(b"no newline at the end")
    (tmp_path / "b.md").write_bytes("\ufeffGrüße\r\nzwei".encode())
    (tmp_path / "empty.txt").touch()
    (tmp_path / "sub" / "c.py").write_bytes("# coding: latin-1\n# Grüße\n".encode("latin-1"))
    (tmp_path / "d.jsonl").write_bytes(b'{"text": "one"}\n\n{"text": ""}\n{"text": "\\u00e9", "id": 4}')
    (tmp_path / "e.csv").write_text("left out")
    (tmp_path / ".hidden.txt").write_text("left out")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "f.txt").write_text("left out")
    documents = sorted(corpus(tmp_path).documents())
    assert documents == sorted(
        ["no newline at the end", "Grüße\nzwei", "# coding: latin-1\n# Grüße\n", "one", "é"]
    )


def test_the_order_of_files_depends_on_their_names_only(tmp_path):
    names = [f"{number}.txt" for number in range(30)]
    for root, order in (("one", names), ("two", names[::-1])):
        (tmp_path / root).mkdir()
        for name in order:
            (tmp_path / root / name).write_text(name)
    first, two = (list(corpus(tmp_path / root).documents()) for root in ("one", "two"))
    assert first == two != sorted(names)
    assert corpus(tmp_path / "one").fingerprint() == corpus(tmp_path / "two").fingerprint()


def test_the_fingerprint_sees_content_names_and_where_files_end(tmp_path):
    prints = set()
    for number, files in enumerate(
        [{"a": "xy", "b": "z"}, {"a": "x", "b": "yz"}, {"a": "xy", "c": "z"}, {"a": "xy"}]
    ):
        root = tmp_path / str(number)
        root.mkdir()
        for name, content in files.items():
            (root / f"{name}.txt").write_text(content)
        prints.add(corpus(root).fingerprint())
    assert len(prints) == 4


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"ok\xff", ["a.txt", "not valid utf-8-sig at byte 2"]),
        ("a.py", b"# coding: klingon\n", ["a.py", "not valid text"]),
        ("a.py", b"x = '\xff'\n", ["a.py", "not valid text"]),
        ("a.jsonl", b'{"text": "ok"}\n{"text": \n', ["a.jsonl, line 2", "not valid JSON"]),
        ("a.jsonl", b'{"body": "x"}', ["line 1", "a string named text"]),
        ("a.jsonl", b'{"text": 3}', ["line 1", "a string named text"]),
        ("a.jsonl", b'["x"]', ["line 1", "a string named text"]),
        ("a.jsonl", b'{"text": "a\\ud800"}', ["line 1", "not valid Unicode at character 1"]),
        ("a.jsonl", b'{"text": "\xff"}', ["line 1", "not valid utf-8-sig"]),
    ],
)
def test_files_that_are_no_text_are_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as caught:
        list(corpus(tmp_path).documents())
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_file_that_opens_and_cannot_be_read_is_named(tmp_path):
    (tmp_path / "a.txt").symlink_to("/proc/self/mem")  # nothing is mapped at address 0
    (tmp_path / "a.jsonl").symlink_to("/proc/self/mem")
    for file in (tmp_path / "a.txt", tmp_path / "a.jsonl"):
        for read in (lambda source: list(source.documents()), lambda source: source.fingerprint()):
            with pytest.raises(ValueError, match=f"{file} cannot be read: Input/output error"):
                read(corpus(file))


def test_inputs_that_hold_no_text_are_refused(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        find(DataArguments(input_dir=str(tmp_path / "none")))
    with pytest.raises(ValueError, match=r"contains no \.txt"):
        find(DataArguments(input_dir=str(tmp_path)))
    (tmp_path / "a.csv").touch()
    with pytest.raises(ValueError, match=r"the suffix '\.csv'"):
        find(DataArguments(input_dir=str(tmp_path / "a.csv")))


def written(folder, names):
    """Files with their own names as text."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def texts(part):
    return part and sorted(part.documents())


def test_linked_folders_and_capital_suffixes_are_read_once(tmp_path):
    folder = written(tmp_path / "data", ["a.TXT", "b.Md", "sub/c.txt"])
    (folder / "linked").symlink_to(written(tmp_path / "elsewhere", ["d.txt", "deep/e.txt"]))
    (folder / "e.txt").symlink_to(tmp_path / "elsewhere" / "deep" / "e.txt")
    (folder / "loop").symlink_to(folder)
    (folder / "again").symlink_to(folder / "sub")
    linked = corpus(folder)
    assert texts(linked) == ["a.TXT", "b.Md", "d.txt", "deep/e.txt", "deep/e.txt", "sub/c.txt"]
    assert linked.notes == (f"skipped in {folder}: 2 (linked folders that were already read 2)",)
    assert texts(corpus(folder / "a.TXT")) == ["a.TXT"]


def test_what_is_skipped_is_counted(tmp_path):
    written(tmp_path, ["a.txt", "b.csv", "c.csv", "d.json", "README", ".e.txt", ".git/f.txt"])
    os.mkfifo(tmp_path / "pipe.txt")
    (note,) = corpus(tmp_path).notes
    assert note.startswith(f"skipped in {tmp_path}: 7 (")
    for kind in (".csv 2", ".json 1", "hidden 2", "without a suffix 1", "no regular files 1"):
        assert kind in note
    (tmp_path / "a.txt").unlink()
    with pytest.raises(ValueError, match=r"contains no \.txt.*skipped in .*: 7 \("):
        corpus(tmp_path)


def test_a_broken_link_is_refused(tmp_path):
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"a\.txt .*No such file"):
        list(corpus(tmp_path).documents())


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (["train.jsonl", "valid.jsonl", "test.jsonl"], ("train.jsonl", "valid.jsonl", "test.jsonl")),
        (["TRAIN.TXT", "Dev.txt"], ("TRAIN.TXT", "Dev.txt", None)),
        (
            ["a-train.txt", "a-validation.txt", "a_test.txt"],
            ("a-train.txt", "a-validation.txt", "a_test.txt"),
        ),
        (
            ["train-00001-of-2.txt", "val-00001-of-2.txt"],
            ("train-00001-of-2.txt", "val-00001-of-2.txt", None),
        ),
        (["a.txt", "test.txt"], ("a.txt", None, "test.txt")),
        (["train/a.txt", "test/b.txt", "eval/c.txt"], ("train/a.txt", "eval/c.txt", "test/b.txt")),
        (["a.py", "test/b.txt"], ("a.py test/b.txt", None, None)),  # the tests of a program
        (["train.py", "test.py", "dev.md"], ("dev.md test.py train.py", None, None)),
        (["sub/test.txt", "testament.txt"], ("sub/test.txt testament.txt", None, None)),
    ],
)
def test_parts_follow_names(tmp_path, names, parts):
    for name in written(tmp_path, names).rglob("*.jsonl"):
        name.write_text(json.dumps({"text": name.name}))
    source = corpus(tmp_path)
    contents = [texts(part) and " ".join(texts(part)) for part in source.parts()]
    assert tuple(contents) == parts
    assert len(source.notes) == 3 - parts.count(None) - 1


def test_only_held_out_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"only test\.txt"):
        corpus(written(tmp_path, ["test.txt"]))


def test_long_files_are_read_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("llm_npu.data.text.corpus.BLOCK", 7)
    text = "Grüße\r\n你好🙂\n\r\n\rend\r" * 5
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (document,) = corpus(tmp_path).streams()
    chunks = list(document.chunks)
    assert len(chunks) > 10 and "".join(chunks) == text.replace("\r\n", "\n")
    (tmp_path / "a.txt").write_bytes(b"0123456789\xe4\xbd" + b"x")
    with pytest.raises(ValueError, match=r"a\.txt .* utf-8-sig at byte 10"):
        list(corpus(tmp_path).documents())


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("llm_npu.data.text.corpus.LONGEST_LINE", 1 << 20)
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"text": "x"}) + "\n" + json.dumps({"text": "x" * (1 << 20)})
    )
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2 .* 1 MiB"):
        list(corpus(tmp_path).documents())


def test_the_default_is_the_standard_library_without_its_tests():
    source = find(DataArguments())
    assert source == standard_library()
    assert 3e6 < sum(file.stat().st_size for file in source.files) <= 4 << 20
    assert not any({"test", "tests", "site-packages"} & set(file.parts) for file in source.files)
