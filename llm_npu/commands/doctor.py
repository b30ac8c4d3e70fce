"""``llm-npu doctor``: exit code 1 if something cannot work, 2 for bad arguments.

With ``--explain LOGFILE``: 1 if a failure in the log was identified, 0 if none, 2 if the log cannot be read.
With ``--rank_table FILE``: 1 if the file violates a rule of HCCL, 0 if not, 2 if it cannot be read.
With ``--cluster HOSTFILE``: 0 if the machines can train together, else 2; ``--rank_table FILE`` is then an
output file.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from llm_npu.cluster import without_run
from llm_npu.core import paths
from llm_npu.core.errors import UserError, caused_by_the_user
from llm_npu.core.untrusted.plain_text import LAYOUT, printable
from llm_npu.doctor import Finding, Setup, as_json, examine, exit_code, explain, text
from llm_npu.doctor.checks import hccl
from llm_npu.doctor.setup import DISK_GB, TIMEOUT
from paddle_fused import command_line


def _parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(
        prog="llm-npu doctor",
        description="Checks the installation, the device and the environment, and suggests a fix for each "
        "problem. Exit code 1 if something cannot work, else 0.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--explain", metavar="LOGFILE", help="identify the failures in a log, first cause first; - is stdin"
    )
    parser.add_argument(
        "--rank_table",
        metavar="FILE",
        help="verify HCCL's rank table, the JSON file in RANK_TABLE_FILE; with --cluster, write a rank table "
        "of these machines",
    )
    parser.add_argument(
        "--cluster",
        metavar="HOSTFILE",
        help="compare the machines listed in the file, one per line; run on each machine at the same time",
    )
    parser.add_argument("--device", default="npu", help="as for llm-npu train (default: npu)")
    parser.add_argument(
        "--output_dir",
        type=paths.path_argument,
        default=Path("output"),
        help="output folder of a run (default: output)",
    )
    parser.add_argument(
        "--disk_gb", type=float, default=DISK_GB, help=f"GiB that a run needs there (default: {DISK_GB:g})"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        help=f"timeout in seconds of the process that imports paddle (default: {TIMEOUT:g}); with --cluster, "
        f"of the wait for other machines (default: {without_run.TIMEOUT:g})",
    )
    parser.add_argument(
        "--root",
        type=paths.path_argument,
        default=Path("/"),
        help="read /dev, /etc, /proc and /usr/local under this folder, such as a mounted host",
    )
    return parser


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    if options.explain is not None:
        return _explained(options.explain, options.json)
    setup = Setup(
        os.environ,
        device_name=options.device,
        output_dir=options.output_dir,
        disk_gb=options.disk_gb,
        timeout=TIMEOUT if options.timeout is None else options.timeout,
        root=options.root,
    )
    if options.cluster is not None:
        return _compared(options, setup)
    if options.rank_table is not None:
        return _verified(options.rank_table, options.json)
    return _shown(examine(setup), options.json)


def _verified(file: str, json: bool) -> int:
    with caused_by_the_user(), _naming_unreadable(file):  # not a JSON object, or an invalid file name
        return _shown(hccl.rank_table(file), json)


def _compared(options: argparse.Namespace, setup: Setup) -> int:
    timeout = without_run.TIMEOUT if options.timeout is None else options.timeout
    with caused_by_the_user(), _naming_unreadable(options.cluster):
        return without_run.compare(options.cluster, setup, timeout, options.rank_table)


def _shown(findings: list[Finding], json: bool) -> int:
    _print(as_json(findings) if json else text(findings))
    return exit_code(findings)


def _explained(file: str, json: bool) -> int:
    with _naming_unreadable(file, ValueError), contextlib.ExitStack() as stack:  # invalid file names
        log = sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))
        explanation = explain.explain(explain.as_utf8(log))
    _print(explain.as_json(explanation) if json else explain.text(explanation))
    return explain.exit_code(explanation)


@contextlib.contextmanager
def _naming_unreadable(file: str, *also: type[Exception]) -> Iterator[None]:
    """Convert an OSError to a UserError that names ``file``."""
    try:
        yield
    except (OSError, *also) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{file!r} cannot be read: {why}") from None


def _print(text: str) -> None:
    """Print text from logs, rank tables and variables; a terminal gets only printable characters."""
    print(printable(text, keep=LAYOUT), end="")
