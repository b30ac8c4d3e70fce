"""``--seconds N``: pytest begins no test after N seconds, passes, and reports what did not run."""

import pytest
from places import TESTS


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "ran"), [(0, 0), (1000, 2)])
def test_no_test_begins_after_the_limit(run_python, seconds, ran):
    chosen = f"{TESTS}/install/test_code_rules.py"
    done = run_python(
        *("-m", "pytest", "-p", "no:cacheprovider", "--seconds", seconds, chosen, "-k", "signatures"),
        cwd=TESTS.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{ran} of 2 chosen tests ran" in done.stdout, done.stdout
    assert ("time was over before" in done.stdout) == (ran == 0)
