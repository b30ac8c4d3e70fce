"""Runs the sweep and writes its page: ``python tests/virtual_npu/api_sweep/report.py``.

The documentation's build shows the page from ``document.PATH``.

Exit code 1, with nothing written, when a case disagrees with what the lists of ``differences`` say.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main() -> int:
    here = Path(__file__).resolve()
    sys.path += [str(here.parents[1]), str(here.parents[2] / "shared"), str(here.parents[3])]
    import virtual_npu

    virtual_npu.activate()  # before anything imports paddle

    from api_sweep.comparison import disagreement
    from api_sweep.differences import BY_CASE
    from api_sweep.document import PATH, document
    from api_sweep.families import CASES

    unexpected = []
    fallen_back: dict[str, set[str]] = {}
    for case in CASES:
        virtual_npu.reset_kernel_record()
        finding = disagreement(case)
        known = BY_CASE.get(case.id)
        if finding if known is None else not re.search(known.finding, finding):
            unexpected.append(f"{case.id}: {finding or 'no longer differs'}")
        on_host = [record for record in virtual_npu.kernel_record() if record.placement == "host"]
        fallen_back.setdefault(case.api, set()).update(map(_kernel, on_host))
    if unexpected:
        print(*unexpected, sep="\n", file=sys.stderr)
        return 1
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(document({api: _placement(kernels) for api, kernels in fallen_back.items()}))
    print(f"{PATH}: {len(fallen_back)} APIs, {len(CASES)} cases")
    return 0


def _kernel(record) -> str:
    return record.name if record.dtype == "float32" else f"{record.name} ({record.dtype})"


def _placement(kernels: set[str]) -> str:
    return f"host: {', '.join(sorted(kernels))}" if kernels else "npu"


if __name__ == "__main__":
    sys.exit(main())
