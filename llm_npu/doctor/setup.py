"""The subject of an examination: an environment, a machine, and the device and folder of a run."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import virtual_npu
from llm_npu import device
from llm_npu.cann import chip as chips
from llm_npu.cann.chip import Chip
from llm_npu.device import Device, VisibleCards
from paddle_fused.cann_installation import Cann, find_cann

from .probe import Probe, run_probe

TIMEOUT = 180.0  # seconds; paddle and paddlenlp need about 10 on an idle machine
DISK_GB = 10.0  # two checkpoints of a model with 500 million parameters and its optimizer


@dataclass(frozen=True)
class Setup:
    """All fields except ``environ`` come from the command line, with the same defaults."""

    environ: Mapping[str, str]
    device_name: str = "npu"
    output_dir: Path = Path("output")
    disk_gb: float = DISK_GB
    timeout: float = TIMEOUT
    root: Path = Path("/")

    @cached_property
    def card(self) -> VisibleCards:
        return device.find_cards(dev=self.root / "dev", environ=self.environ)

    @cached_property
    def device(self) -> Device:
        """The device that the run would use; raises ValueError with the reason if it is unavailable."""
        count = virtual_npu.device_count(self.environ)
        return device.decide(self.device_name, self.card, virtual_npu.is_active(), count)

    @property
    def kind(self) -> str:
        """card, virtual or cpu. If the device is unknown: virtual, which has the fewest requirements."""
        try:
            return self.device.kind
        except ValueError:
            return "virtual"

    @cached_property
    def cann(self) -> Cann | None:
        """The CANN installation; None if there is none."""
        return find_cann(self.environ, self.root)

    @cached_property
    def npu_smi(self) -> subprocess.CompletedProcess[str] | None:
        """The result of ``npu-smi info``; None if the tool is not installed."""
        return chips.npu_smi(self.environ, self.root)

    @cached_property
    def chip(self) -> Chip | None:
        """The family of the cards, emulated ones included; None if unknown."""
        if self.kind == "virtual":
            return chips.of_virtual_npu(virtual_npu.card(self.environ))
        return self.npu_smi and chips.of_machine(self.environ, self.root, self.npu_smi.stdout)

    @property
    def cann_level(self) -> str | None:
        """The version of CANN that the device's operators follow; None if unknown."""
        if self.kind == "virtual":
            try:
                return virtual_npu.cann_level(self.environ)
            except ValueError:  # reported by the check of the device
                return None
        return self.cann.version if self.cann else None

    def variables_of_device(self) -> dict[str, str]:
        """The environment variables that a process needs to use the device.

        Raises RuntimeError or ValueError with the reason if the virtual NPU is not available.
        """
        if self.device.kind == "virtual":
            return virtual_npu.environment(self.environ)
        return {"CUSTOM_DEVICE_ROOT": str(self.card.plugin) if self.device.kind == "card" else ""}

    @cached_property
    def probe(self) -> Probe:
        """The probe of paddle, and of the device if it is available."""
        try:
            variables = self.variables_of_device()
        except (RuntimeError, ValueError):  # reported by the checks of device and plugin
            variables = {"CUSTOM_DEVICE_ROOT": ""}
        quiet = {"GLOG_minloglevel": "2", "VIRTUAL_NPU_QUIET": "1"}
        return run_probe({**self.environ, **quiet, **variables}, self.timeout)
