"""Diagnoses an installation and suggests fixes: ``llm-npu doctor``.

    findings = examine(Setup(os.environ))
    print(text(findings))

Neither paddle nor numpy is imported here, because a broken Paddle is a finding. Facts that need Paddle come
from a separate process (``probe``); its crash or hang is also a finding. Everything else is read from files,
from the environment, and from the system.
"""

from .finding import Finding, as_json, exit_code, text
from .setup import Setup

__all__ = ["Finding", "Setup", "as_json", "examine", "exit_code", "text"]


def examine(setup: Setup) -> list[Finding]:
    """The findings of every check on ``setup``, in order."""
    from .checks import examine as run_all  # a late import: it imports all checks

    return run_all(setup)
