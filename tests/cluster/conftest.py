"""Machines for the tests of this folder and those below."""

import pytest
import virtual_machines


@pytest.fixture
def two_machines():
    """Two machines, which end with the test."""
    with virtual_machines.machines(2) as hosts:
        yield hosts


@pytest.fixture
def three_apart():
    """Three machines with a network between them, which end with the test."""
    if not virtual_machines.namespaces_are_allowed():
        pytest.skip("network namespaces are not allowed here: no root, or no iproute2")
    with virtual_machines.machines(3) as hosts:
        yield hosts
