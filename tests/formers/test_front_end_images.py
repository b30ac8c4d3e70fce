"""``llm-npu formers train`` refuses images that PaddleFormers would skip, with file and line."""

import json

import pytest
from PIL import Image

from llm_npu.core.errors import UserError
from llm_npu.formers import images


def conversation(*paths: str, content: str | None = None) -> dict:
    content = "<image>" * len(paths) + "OCR:" if content is None else content
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "A"}]
    return {"messages": messages, "images": list(paths)}


@pytest.fixture
def write(tmp_path):
    """A function: the settings of a job on these records; ``good.png`` stands beside their file."""
    Image.new("RGB", (40, 30)).save(tmp_path / "good.png")

    def of(*records: dict, template: str = "paddleocr_vl", **settings) -> dict:
        file = tmp_path / "train.jsonl"
        file.write_text("\n".join(map(json.dumps, records)) + "\n")
        return {"stage": "VL-SFT", "template": template, "train_dataset_path": f"{file}", **settings}

    return of


def save(folder, mode: str, name: str = "bad.png", size=(40, 30)) -> str:
    Image.new(mode, size).save(folder / name)
    return name


def truncated(folder, kind: str) -> str:
    name = f"truncated.{kind}"
    Image.effect_noise((300, 300), 50).convert("RGB").save(folder / name)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    return name


def text(folder) -> str:
    (folder / "text.png").write_text("no image")
    return "text.png"


def empty(folder) -> str:
    (folder / "empty.png").touch()
    return "empty.png"


def directory(folder) -> str:
    (folder / "folder.png").mkdir()
    return "folder.png"


def narrow(folder) -> str:
    return save(folder, "RGB", size=(2010, 10))


BAD = {
    "missing": (lambda folder: "none.png", "does not exist"),
    "text": (text, "is not an image"),
    "empty": (empty, "is not an image"),
    "directory": (directory, "cannot be read"),
    "truncated PNG": (lambda folder: truncated(folder, "png"), "cannot be read"),
    "truncated JPEG": (lambda folder: truncated(folder, "jpg"), "cannot be read"),
    "truncated TIFF": (lambda folder: truncated(folder, "tif"), "cannot be read|is not an image"),
    "narrow": (narrow, "2010 x 10 pixels"),
    "16 bits": (lambda folder: save(folder, "I;16"), "mode I;16"),
    "32 bits": (lambda folder: save(folder, "F", "bad.tif"), "mode F"),
    "bilevel": (lambda folder: save(folder, "1"), "mode 1"),
    "palette": (lambda folder: save(folder, "P"), "mode P"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_image_is_refused_with_file_and_line(tmp_path, write, kind):
    make, reason = BAD[kind]
    settings = write(conversation("good.png"), conversation("good.png"), conversation(make(tmp_path)))
    with pytest.raises(UserError, match=f"train.jsonl, line 3: .*({reason})") as error:
        images.check(settings)
    assert "\n" not in str(error.value)


def test_an_image_that_pillow_refuses_for_its_size(write, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UserError, match=r"line 1: .*good.png has more than .* million pixels"):
        images.check(write(conversation("good.png")))


@pytest.mark.parametrize("mode", images.AUGMENTED_MODES)
def test_other_modes_are_accepted(tmp_path, write, mode):
    assert images.check(write(conversation(save(tmp_path, mode, "other.tif")))) == []


@pytest.mark.parametrize("mode", ["1", "P"])
def test_only_paddleocr_vl_augments_images_in_their_mode(tmp_path, write, mode):
    settings = write(conversation(save(tmp_path, mode)), template="qwen2_vl")
    assert images.check(settings) == []


def test_modes_that_the_augmentation_supports():
    """PaddleFormers' augmentation for PaddleOCR-VL; it applies each transformation to some images."""
    pytest.importorskip("paddleformers")
    from paddle.vision import transforms

    jitter = transforms.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.2, hue=0.1)
    for mode in images.AUGMENTED_MODES:
        jitter(Image.new(mode, (8, 8)))
    for mode in ("1", "P", "PA", "I", "F", "I;16"):
        with pytest.raises(ValueError, match="mode"):
            jitter(Image.new(mode, (8, 8)))


@pytest.mark.parametrize(
    "record",
    [
        conversation("good.png", content="OCR:"),
        conversation("good.png", content="<image><image>OCR:"),
        conversation(content="<image>OCR:"),
        {"messages": conversation("good.png")["messages"]},
    ],
)
def test_marks_must_match_the_images(write, record):
    with pytest.raises(UserError, match=r"line 2 has \d <image> and \d image"):
        images.check(write(conversation("good.png"), record))


def test_several_images_of_a_conversation(write):
    record = conversation("good.png", "good.png")
    assert images.check(write(record, template="qwen2_vl")) == []
    with pytest.raises(UserError, match="line 1 has 2 images, but paddleocr_vl supports one"):
        images.check(write(record))


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (conversation(content="<video>What happens?") | {"videos": ["a.mp4"]}, "videos"),
        ({"video_info": [{"image_url": "a.mp4", "matched_text_index": 0}], "text_info": []}, "video_info"),
        (conversation(content="<audio>What is said?") | {"audios": ["a.wav"]}, "audios"),
        (conversation(content="<video>What happens?"), "<video>"),
    ],
)
def test_videos_and_audio_are_refused(write, record, kind):
    with pytest.raises(UserError, match=f"train.jsonl, line 2 has (the mark )?{kind}[,;] "):
        images.check(write(conversation("good.png"), record, template="qwen2_vl"))


def test_paths_that_are_not_text(write):
    with pytest.raises(UserError, match=r"line 1: images is \[3\]; write a list of paths"):
        images.check(write(conversation("good.png") | {"images": [3]}))


def test_erniekits_format(write):
    record = {"image_info": [{"image_url": "none.png", "matched_text_index": 0}], "text_info": []}
    with pytest.raises(UserError, match=r"line 1: .*none.png does not exist"):
        images.check(write(record))


def test_what_is_not_checked(write):
    assert images.check(write(conversation("http://example.com/a.png"))) == []
    assert images.check(write(conversation("none.png"), stage="SFT")) == []
    assert images.check({"stage": "VL-SFT", "train_dataset_path": "name/of-a-hub"}) == []


def test_the_data_of_the_evaluation_is_checked_if_it_runs(tmp_path, write):
    settings = write(conversation("good.png"), eval_dataset_path=str(tmp_path / "eval.jsonl"))
    assert images.check(settings) == []
    with pytest.raises(UserError, match=r"eval_dataset_path: .*eval.jsonl does not exist"):
        images.check(settings | {"do_eval": True})


def test_entries_that_are_not_read(tmp_path, monkeypatch, write):
    (tmp_path / "other.json").write_text("no JSON")
    monkeypatch.chdir(tmp_path)
    settings = write(conversation("good.png"))
    files = settings["train_dataset_path"]
    assert images.check(settings | {"train_dataset_path": f"{files}, ,"}) == []
    assert images.check(settings | {"do_eval": True}) == []
    two = settings | {"train_dataset_path": f"none.jsonl,{files}"}
    assert images.check(two | {"train_dataset_prob": "0, 1"}) == []
    with pytest.raises(UserError, match=r"none\.jsonl does not exist"):
        images.check(two | {"train_dataset_prob": "0.5, 0.5"})


def test_images_that_were_not_decoded_are_counted(tmp_path, write, monkeypatch):
    monkeypatch.setattr(images, "SECONDS", 0)
    settings = write(conversation("good.png"), conversation(truncated(tmp_path, "png")))
    (note,) = images.check(settings)
    assert note.startswith("2 of 2 images were opened")


def test_the_command_stops_before_training(run_python, tmp_path, write):
    settings = write(conversation("none.png"))
    (tmp_path / "job.yaml").write_text(json.dumps(settings))
    done = run_python("-m", "llm_npu.formers", "train", "job.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
