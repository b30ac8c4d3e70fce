"""Tests the project on releases of Paddle, each in a fresh environment, and writes docs/versions.md.

    python scripts/run_versions.py                       # every release, everything: many hours
    python scripts/run_versions.py 3.2.2                 # one of them
    python scripts/run_versions.py --quick 3.0.0         # samples, and a main job of 20 steps
    python scripts/run_versions.py 3.2.2 --only 'sharding*' --environment FOLDER

Paddle is installed, then this project's last commit, as a user would do it. The results go into one file per
release (scripts/versions/results); a later attempt replaces an earlier one, so that releases may be run one
after another and again. The page is written from these files. Command output is kept below build/versions,
with a checkpoint of each release for the others to read.

Exit status: 0 if everything works or is refused in a sentence, 1 if something failed, 2 for invalid
arguments, 3 if nothing failed but something was not run: --limit was reached, or the page has cells that say
"not run".
"""

import argparse
import contextlib
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from versions import RELEASES, environment, features, page, results
from versions.trial import Trial

from paddle_fused import command_line

ROOT = environment.ROOT
PAGE = ROOT / "docs" / "versions.md"
RESULTS = ROOT / "scripts" / "versions" / "results"
FULL_STEPS, QUICK_STEPS = 200, 20


def parse(arguments):
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "releases", nargs="*", metavar="VERSION", help=f"of {', '.join(RELEASES)}; default: all"
    )
    parser.add_argument("--quick", action="store_true", help="short runs and samples of the tests")
    parser.add_argument(
        "--failed", action="store_true", help="only the test files with failures in the last run"
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="features, by name")
    parser.add_argument(
        "--steps", type=int, help=f"of the main job (default {FULL_STEPS}; {QUICK_STEPS} if quick)"
    )
    parser.add_argument("--python", default=environment.default_python(), help="makes the environments")
    parser.add_argument("--environment", type=Path, help="use this one, in which all is installed")
    parser.add_argument("--limit", type=int, default=0, metavar="SECONDS", help="time limit of the whole run")
    parser.add_argument("--keep", action="store_true", help="keep the environments and what the runs wrote")
    parser.add_argument(
        "--upstream", type=Path, help="a checkout of PaddleCustomDevice (run_upstream_tests.py)"
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "versions", help="for environments and runs"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    parser.add_argument("--no_page", action="store_true", help="write no page")
    parser.add_argument("--only_page", action="store_true", help="run nothing, write the page")
    given = parser.parse_args(arguments)
    if unknown := [release for release in given.releases if release not in RELEASES]:
        parser.error(f"{unknown[0]} is not one of {', '.join(RELEASES)}")
    for pattern in given.only:
        if not any(features.matches(name, [pattern]) for name in features.FEATURES):
            parser.error(f"no feature matches {pattern!r}; they are: {'; '.join(features.FEATURES)}")
    if given.environment and len(given.releases) != 1:
        parser.error("--environment needs a single release: name it")
    given.releases = given.releases or list(RELEASES)
    given.steps = given.steps or (QUICK_STEPS if given.quick else FULL_STEPS)
    if given.steps < 20:
        parser.error(
            f"--steps is {given.steps}, but must be 20 or more: a checkpoint is resumed ten before the end"
        )
    for name in ("environment", "upstream", "work"):
        path = getattr(given, name)
        setattr(given, name, path and path.resolve())
    return given


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Release:
    """One release: results are stored at once."""

    def __init__(self, release, given, failures, ending):
        """``failures`` collects failures, ``ending`` removes what need not be kept."""
        self.known = results.Results(given.results, release)
        self.given, self.failures = given, failures
        folder = given.work / release
        logs = folder / "logs"
        shutil.rmtree(logs, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.commit = environment.clone(folder / "sources", logs)
        if not given.keep:
            for made in ("sources", "environment", "runs"):
                ending.callback(shutil.rmtree, folder / made, ignore_errors=True)
        if given.environment:
            used, kept = environment.existing(given.environment, logs, release), None
        else:
            used = environment.fresh(folder / "environment", logs, given.python)
            kept = environment.install(used, release, folder / "sources")
        runs = folder / "runs"
        shutil.rmtree(runs, ignore_errors=True)
        runs.mkdir()
        self.trial = Trial(
            *(release, used, folder / "sources", runs, given.work / "checkpoints", given.upstream),
            *(given.quick, given.failed, given.steps),
        )
        if kept:
            self.take({features.INSTALL: kept})

    def run(self, patterns):
        """Tests the selected features."""
        for outcomes in features.tried(self.trial, patterns):
            self.take(outcomes)
            if outcomes.get(features.MAIN, ("",))[0] == results.YES:
                last = self.trial.losses("main")[self.trial.steps]
                self.known.add_loss(self.trial.steps, last, self.trial.python_version, self.commit)

    def take(self, outcomes):
        """Stores and prints the outcomes of features."""
        about = {"commit": self.commit, "python": self.trial.python_version}
        self.known.add(outcomes, run="quick" if self.given.quick else "full", **about)
        for name, outcome in outcomes.items():
            if outcome.state == results.FAILED:
                self.failures.append(f"{self.known.release} {name}")
            say(f"{self.known.release} {name}: {outcome.state}, {outcome.words}")

    def reads_others(self):
        """Whether the checkpoint of another release has been read, or was not requested."""
        asked = features.matches(features.OTHERS, self.given.only)
        return not asked or bool(features.others(self.trial))


class TimeLimit(BaseException):
    """--limit has passed: only the exits of `with` and `finally` may handle it."""


def raise_time_limit(number, frame):
    raise TimeLimit


def run_all(given, failures):
    """Tests each release; ``failures`` collects failures.

    The first one may have no other's checkpoint to read: it is tried again at the end.
    """
    waiting = []
    with contextlib.ExitStack() as at_the_end:
        for release in given.releases:
            with contextlib.ExitStack() as ending:
                try:
                    turn = Release(release, given, failures, ending)
                except environment.CannotStart as problem:
                    failures.append(release)
                    say(f"{release}: {problem}")
                    continue
                turn.run(given.only)
                if not turn.reads_others():
                    waiting.append(turn)
                    at_the_end.push(ending.pop_all())
        for turn in waiting:
            turn.run([features.OTHERS])


def main(arguments=None):
    given = parse(arguments)
    failures, unfinished = [], False
    if not given.only_page:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        signal.signal(signal.SIGALRM, raise_time_limit)
        signal.alarm(given.limit)  # no limit for 0
        try:
            run_all(given, failures)
        except TimeLimit:
            unfinished = True
            say(f"{given.limit} seconds are over")
        finally:
            signal.alarm(0)
    if not given.no_page:
        unfinished |= write_page(given)
    if failures:
        say(f"failed: {'; '.join(failures)}")
    return 1 if failures else 3 if unfinished else 0


def write_page(given):
    """Writes the page, and prints its missing results; returns whether there are any."""
    known = results.read(given.results, RELEASES)
    given.page.write_text(page.page(known))
    missing = page.missing(known)
    for release, names in missing.items():
        which = "everything" if len(names) == len(features.FEATURES) else "; ".join(names)
        say(f"{release}: not run: {which}")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
