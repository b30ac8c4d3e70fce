"""The device that a run would use: a card, the virtual NPU, or the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import virtual_npu

from ..finding import Finding, error, ok
from ..setup import Setup

NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")  # opened by CANN besides the card's own node


def chosen(setup: Setup) -> Iterator[Finding]:
    """What `--device` means here; the driver's nodes, `ASCEND_RT_VISIBLE_DEVICES`, `VIRTUAL_NPU_*`.

    A problem: a device that cannot be had; a setting of the virtual NPU that is unknown or has a bad value.
    """
    try:
        device = setup.device
    except ValueError as failure:
        yield error("device", str(failure), "Correct the device or the variable named here.")
        return
    if device.kind == "card":
        yield from _card(setup)
    elif device.kind == "virtual":
        count = virtual_npu.device_count(setup.environ)
        missing = f" ({'; '.join(setup.card.missing)})" if setup.card.missing else ""
        yield ok("device", f"{count} virtual NPUs on the host CPU, not a card: {device.reason}{missing}")
    else:
        yield ok("device", f"the CPU: {device.reason}")


def _card(setup: Setup) -> Iterator[Finding]:
    missing = [node for node in NODES if not (setup.root / "dev" / node).exists()]
    if missing:
        nodes = ", ".join(f"/dev/{node}" for node in missing)
        fix = f"Start the container with {' '.join(f'--device /dev/{node}' for node in missing)}."
        yield error("device", f"the driver's nodes {nodes} do not exist", fix)
    else:
        yield ok("device", f"{setup.card.count} Ascend card(s); plugin: {setup.card.plugin}")


CHECKS = {"device": chosen}
