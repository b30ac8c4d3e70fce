"""Machines for the tests of this folder."""

import pytest
import virtual_machines


@pytest.fixture
def two_machines():
    """Two machines, which end with the test."""
    with virtual_machines.machines(2) as made:
        yield made
