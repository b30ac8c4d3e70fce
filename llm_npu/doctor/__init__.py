"""Diagnoses an installation and suggests fixes: ``llm-npu doctor``.

    findings = examine(Setup(os.environ))
    print(text(findings))

This package imports neither paddle nor numpy, because a broken Paddle is one of the findings. Facts that need
Paddle come from a separate process (``probe``), whose crash or hang is also a finding. Everything else is
read from files, the environment and the system.
"""

from .finding import Finding, as_json, exit_code, text
from .setup import Setup

__all__ = ["Finding", "Setup", "as_json", "examine", "exit_code", "text"]


def examine(setup: Setup) -> list[Finding]:
    """Run all checks on ``setup`` and return their findings in order."""
    from .checks import examine as run_all  # imported late: it imports all checks

    return run_all(setup)
