"""``--check_device``: prints what the checks of the virtual NPU cannot see in this run."""

from __future__ import annotations

import virtual_npu
from llm_npu.training.run import Feature, Run


class DeviceChecks(Feature):
    """The checks of VIRTUAL_NPU_CHECK, which ``--check_device`` sets."""

    def takes_part(self, run: Run) -> bool:
        return run.device.kind == "virtual" and bool(virtual_npu.checks())

    def on_model(self, run: Run) -> None:
        checks = virtual_npu.checks()
        run.notes.append(f"device checks: {', '.join(checks)}; steps take longer")
        if "init" in checks:
            run.notes.append("device checks: init skips operators that draw random numbers, such as dropout")
        if getattr(run.arguments.training, "to_static", False):
            run.notes.append(
                "device checks: operators of a captured program have no Python line; findings name "
                "'a static program'"
            )
