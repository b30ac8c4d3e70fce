"""A clone of this project, and what ``pip install .`` makes of it, by copying: nothing is compiled."""

import json
import shutil
from pathlib import Path

from places import ROOT

from paddle_fused import libraries

PACKAGES = ("paddle_fused", "virtual_npu", "llm_npu")
BUILT = {Path(file).parts[-2 if file.endswith(".so") else -1] for file in libraries.BUILT_FILES}


def make_clone(folder: Path) -> Path:
    """The packages, the scripts, the benchmarks and demo.yaml, with nothing built."""
    for name in (*PACKAGES, "scripts", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", *BUILT))
    shutil.copy(ROOT / "demo.yaml", folder)
    return folder


def build_in(clone: Path) -> None:
    """The libraries under test in the clone, as if they had been built there."""
    for name in libraries.BUILT_FILES:
        file = clone / name
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(libraries.folder() / name, file)
    stamp = json.loads(file.read_text())
    file.write_text(json.dumps({**stamp, "sources": libraries.sources_digest(clone)}))


def install(clone: Path, site: Path) -> Path:
    """The folder ``site`` with the packages as a wheel of the clone has them: with libraries, without C++."""
    for name in PACKAGES:
        shutil.copytree(clone / name, site / name)
    build_in(site)
    for name in libraries.PACKAGES:
        shutil.rmtree(site / name / "csrc")
    return site
