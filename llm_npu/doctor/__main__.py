"""``python -m llm_npu.doctor``: exit code 1 if something cannot work, 2 for bad arguments.

With ``--explain LOGFILE``: 1 if a failure in the log was named, 0 if none, 2 if the log cannot be read.
With ``--rank_table FILE``: 1 if the file breaks a rule of HCCL, 0 if none, 2 if it cannot be read.
With ``--cluster HOSTFILE``: 0 if the machines may train together, else 2; ``--rank_table FILE`` then names a
file to write.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from llm_npu.cluster import without_run
from llm_npu.core import paths
from llm_npu.core.untrusted.plain_text import LAYOUT, printable
from paddle_fused import streams

from . import Finding, Setup, as_json, examine, exit_code, explain, text
from .checks import hccl
from .setup import DISK_GB, TIMEOUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m llm_npu.doctor",
        description="Examines the installation, the device and the environment, and names the cure of what "
        "is wrong. Exit code 1 if something cannot work, else 0.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--explain", metavar="LOGFILE", help="name the failures in a log, the first cause first; - is stdin"
    )
    parser.add_argument(
        "--rank_table",
        metavar="FILE",
        help="verify a rank table of HCCL, the JSON file that RANK_TABLE_FILE names; with --cluster, write "
        "one of these machines",
    )
    parser.add_argument(
        "--cluster",
        metavar="HOSTFILE",
        help="compare the machines that the file names, one a line; run it on each of them at the same time",
    )
    parser.add_argument("--device", default="npu", help="as for scripts/run_llama_npu.py (default: npu)")
    parser.add_argument(
        "--output_dir",
        type=paths.given,
        default=Path("output"),
        help="where a run would write (default: output)",
    )
    parser.add_argument(
        "--disk_gb", type=float, default=DISK_GB, help=f"GiB a run would write there (default: {DISK_GB:g})"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        help=f"seconds that the process which imports paddle gets (default: {TIMEOUT:g}); with --cluster, "
        f"that the machines wait for each other (default: {without_run.TIMEOUT:g})",
    )
    parser.add_argument(
        "--root",
        type=paths.given,
        default=Path("/"),
        help="look for /dev, /etc, /proc and /usr/local below this folder, such as a mounted host",
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
    try:
        return _shown(hccl.rank_table(file), json)
    except OSError as error:
        return _refused(f"{file!r} cannot be read: {error.strerror}")
    except ValueError as error:  # no JSON object, and names that cannot exist
        return _refused(str(error))


def _compared(options: argparse.Namespace, setup: Setup) -> int:
    try:
        timeout = without_run.TIMEOUT if options.timeout is None else options.timeout
        return without_run.compare(options.cluster, setup, timeout, options.rank_table)
    except OSError as error:
        return _refused(f"{options.cluster!r} cannot be read: {error.strerror}")
    except ValueError as error:
        return _refused(str(error))


def _shown(findings: list[Finding], json: bool) -> int:
    _print(as_json(findings) if json else text(findings))
    return exit_code(findings)


def _explained(file: str, json: bool) -> int:
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as log:
            found = explain.explain(explain.as_utf8(log))
    except OSError as error:
        return _refused(f"{file!r} cannot be read: {error.strerror}")
    except ValueError as error:  # for names that cannot exist
        return _refused(f"{file!r} cannot be read: {error}")
    _print(explain.as_json(found) if json else explain.text(found))
    return explain.exit_code(found)


def _print(text: str) -> None:
    """Logs, rank tables and variables say much of it: a terminal gets printable characters only."""
    print(printable(text, keep=LAYOUT), end="")


def _refused(sentence: str) -> int:
    print(f"error: {printable(sentence, keep=LAYOUT)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(streams.run(main, sys.argv[1:]))
