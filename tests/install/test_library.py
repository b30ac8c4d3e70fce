"""Which library of models is installed, and the sentence where there is none."""

import sys

import pytest

from llm_npu.core.errors import UserError
from llm_npu.models import library


def test_the_installed_library_is_found_and_its_modules_are_its_own():
    name = library.installed()
    assert name in library.LIBRARIES
    assert library.adapter.__name__ == f"llm_npu.models.{name}.adapter"


def test_an_install_without_a_library_names_both_commands(monkeypatch):
    for name in library.LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r'neither .* ".\[paddlenlp\]" or pip install ".\[paddleformers\]"'):
        library.installed()


def test_other_attributes_are_missing_as_usual():
    with pytest.raises(AttributeError, match="no attribute 'famili'"):
        _ = library.famili
