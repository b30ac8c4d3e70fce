"""Names what is wrong with an installation, and the cure: ``python -m llm_npu.doctor``.

    findings = examine(Setup(os.environ))
    print(text(findings))

Neither paddle nor numpy is imported here: a broken Paddle is a finding. What only a process with Paddle knows
is asked in one (``probe``), whose crash or silence is a finding, too. Everything else is read from files,
from the environment, and from the system.
"""

from .finding import Finding, as_json, exit_code, text
from .setup import Setup

__all__ = ["Finding", "Setup", "as_json", "examine", "exit_code", "text"]


def examine(setup: Setup) -> list[Finding]:
    """The findings of every check on ``setup``, in their order."""
    from .checks import examine as run_all  # it imports all of them

    return run_all(setup)
