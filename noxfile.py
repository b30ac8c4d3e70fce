"""Tests the project on releases of Paddle, each in a fresh environment, and writes docs/versions.md.

    nox                                       # every release, then the page: many hours
    nox -s "paddle(3.2.2)" page               # one release, and the page
    nox -s "paddle(3.0.0)" -- --quick -x      # samples, and a main job of 20 steps; ends at the first failure
    nox -R -s "paddle(3.2.2)" -- -k sharding  # again in the same environment, only some features

Paddle is installed, then the last commit of this project, as a user would do it. The results are merged into
scripts/versions/results, one file per release: a later result of a feature replaces an earlier one. The
session of each release leaves a checkpoint, from which the sessions of later releases resume.

After ``--``: ``--quick``, ``--results FOLDER``, and options of pytest; options other than ``-x`` leave the
test suite out. ``PADDLE_CUSTOM_DEVICE`` may name a checkout of PaddleCustomDevice, whose tests then run too.
Losses of releases are comparable with the same Python only, because its library is the text that is learned:
``--force-python 3.10`` chooses one.
"""

import argparse
import os
import sys
from pathlib import Path

import nox

nox.options.envdir = "build/nox"
ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from versions import results  # noqa: E402  (after the path)

FREEZE = ("python", "-m", "pip", "freeze")
STEPS, QUICK_STEPS = 200, 20  # of the main job
# A hung test ends its process after half an hour, even if it holds the interpreter.
HANGS = ("-o", "faulthandler_timeout=1800", "-o", "faulthandler_exit_on_timeout=true")


@nox.session
@nox.parametrize("release", results.RELEASES, ids=results.RELEASES)
def paddle(session: nox.Session, release: str) -> None:
    """Installs a release of Paddle and this project, and tests the features and the suite."""
    quick, folder, options = _arguments(session.posargs)
    work = session.cache_dir.resolve() / release
    sources = work / "sources"
    session.run_install("rm", "-rf", str(work), external=True)
    session.run_install("git", "clone", "-q", str(ROOT), str(sources), external=True)
    session.install(f"paddlepaddle=={release}")
    before = session.run_install(*FREEZE, silent=True)
    session.install(f"{sources}[paddlenlp,test]")
    after = session.run_install(*FREEZE, silent=True)

    commit = session.run(
        "git", "-C", str(sources), "rev-parse", "--short", "HEAD", external=True, silent=True
    )
    python = session.run("python", "-c", "import platform; print(platform.python_version())", silent=True)
    about = {"commit": commit.strip(), "python": python.strip(), "run": "quick" if quick else "full"}
    known = results.Results(folder, release)
    if before is not None:  # not with -R, which installs nothing
        known.add({results.INSTALL: results.kept(*map(results.frozen, (before, after)))}, **about)

    environment = {
        **{name: None for name in os.environ if name.startswith("VIRTUAL_NPU_")},
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": None,
        "VERSIONS_STEPS": str(QUICK_STEPS if quick else STEPS),
        "VERSIONS_CHECKPOINTS": str(work.parent / "checkpoints"),
    }
    features = ["scripts/versions/test_features.py", "-m", "quick" if quick else "", "--numprocesses", "0"]
    suite = ["tests", "-m", "not slow", "--numprocesses", "2", *HANGS]
    failed = []
    with session.chdir(sources):
        if quick:
            suite[:1] = [
                str(file) for file in Path("tests").rglob("test_*.py") if file.name in results.SAMPLE
            ]
        for name, arguments in (("features", features), ("suite", suite)):
            if name == "suite" and (set(options) - {"-x"} or (failed and "-x" in options)):
                break
            junit, folder_of_runs = work / f"{name}.xml", f"--basetemp={work / name}"
            junit.unlink(missing_ok=True)
            try:
                session.run(
                    *("pytest", *arguments, folder_of_runs, f"--junitxml={junit}", *options),
                    env=environment,
                    success_codes=[0, 1],
                )
            finally:
                failed += known.add_file(junit, **about)
    if failed:
        session.error(f"failed: {'; '.join(failed)}")


@nox.session(python=False)
def page(session: nox.Session) -> None:
    """Writes docs/versions.md from the results."""
    results.PAGE.write_text(results.page())


def _arguments(words: list[str]) -> tuple[bool, Path, list[str]]:
    """Whether it is a quick run, the folder of the results, and the options of pytest."""
    parser = argparse.ArgumentParser(prog="nox -s paddle --", allow_abbrev=False)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    known, options = parser.parse_known_args(words)
    return known.quick, known.results.resolve(), options
