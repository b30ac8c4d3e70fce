"""PaddleOCR-VL's augmentation of images in the thread of a data loader."""

import random
import threading

import pytest
from paddle.vision.transforms import transforms
from paddleformers.datasets.template import augment_utils
from PIL import Image

from llm_npu.patches.paddleformers import vision


@pytest.fixture
def unpatched(monkeypatch):
    for module in (augment_utils, transforms):
        monkeypatch.setattr(module, "random", random)


@pytest.fixture
def patched(monkeypatch, unpatched):
    vision.fix_augmentation_in_threads.__wrapped__()


def augmented_in_a_thread(rewind: bool) -> list[tuple[int, ...]]:
    """Images that a thread augments while the main thread sets Python's generator back or does nothing."""
    from paddleformers.datasets.template.mm_plugin import PaddleOCRVLPlugin

    augment = PaddleOCRVLPlugin("<image>", "<video>", "<audio>").image_augmentation
    image, augmented = Image.radial_gradient("L").resize([32, 32]).convert("RGB"), []
    turn = threading.Barrier(2, timeout=60)

    def read():
        for _ in range(12):
            augmented.append(augment(image))
            turn.wait()
            turn.wait()

    random.seed(5)
    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(12):
        turn.wait()
        if rewind:
            random.seed(6)
        turn.wait()
    thread.join()
    return [image.size + tuple(image.tobytes()) for image in augmented]


def test_a_thread_draws_what_it_would_draw_alone(patched):
    assert augmented_in_a_thread(rewind=True) == augmented_in_a_thread(rewind=False)


def test_without_the_patch_its_draws_depend_on_the_main_thread(unpatched):
    assert augmented_in_a_thread(rewind=True) != augmented_in_a_thread(rewind=False)


def test_the_main_thread_draws_from_the_global_generator(patched):
    random.seed(5)
    expected = random.random()
    random.seed(5)
    assert augment_utils.random.random() == expected
