"""Errors meant for the user, which a run answers with one sentence; defects keep their traceback."""

from pathlib import Path

import paddle
import pytest

from llm_npu.core import errors
from llm_npu.training import checkpoint


def test_errors_that_are_meant_for_the_user():
    def is_for_the_user(action):
        with pytest.raises((ValueError, OSError)) as error:
            action()
        return errors.is_for_the_user(error.value)

    def reshape():
        paddle.ones([2, 3]).reshape([5])

    assert is_for_the_user(lambda: checkpoint.verify("/nowhere"))
    assert is_for_the_user(lambda: Path("/nowhere").read_text())
    assert not is_for_the_user(reshape)
    assert is_for_the_user(errors.caused_by_the_user()(reshape))
