"""Builds wheels of this project, one for each release of Paddle and processor, and checks each.

    python scripts/build_wheels.py --release 3.2.2 3.3.1 --processor x86_64 aarch64 --out dist

A wheel requires exactly the Paddle release that it was built for, and contains the kernels for every
instruction set that the compiler supports. Its libraries call no function of Python, so one wheel works with
every Python for which Paddle has a wheel. The check runs in an environment with only the wheel, Paddle and
its requirements: one operator, on the host and on the virtual NPU, compared with its float64 golden value. On
the native processor, it uses a virtual environment for each Python in --python. For aarch64 on another
machine, a cross compiler is used, and the check runs on emulated aarch64.

The script needs the extra `test` and, to compile for aarch64, the packages g++-aarch64-linux-gnu and
qemu-user of Debian and Ubuntu. Downloads, environments and compiled files are cached in $PADDLE_FUSED_CACHE,
by default ~/.cache/paddle_fused.
"""

from __future__ import annotations

import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from building import wheels
from building.installed_paddle import RELEASES
from paddle_fused import command_line

TIMEOUT = 1800  # time limit of a check, which takes a second natively and minutes emulated


def main(argv: list[str]) -> int:
    known = sorted({release for releases in RELEASES.values() for release in releases})
    parser = command_line.Parser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--release", nargs="+", default=None, help=f"Paddle releases: {', '.join(known)}; default: all"
    )
    parser.add_argument(
        "--processor",
        nargs="+",
        default=[platform.machine()],
        help=f"{', '.join(RELEASES)}; default: this machine's",
    )
    parser.add_argument(
        "--python", nargs="+", default=[sys.executable], help="interpreters for the check; default: this one"
    )
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder of the wheels; default: dist")
    options = parser.parse_args(argv)
    targets = [
        wheels.Target(release, processor)
        for processor in options.processor
        for release in options.release or RELEASES.get(processor, known)
    ]
    for target in targets:  # all targets first, because a build takes minutes
        target.check()
    for target in targets:
        make(target, options.python, options.out)
    return 0


def make(target: wheels.Target, pythons: list[str], folder: Path) -> None:
    """Build one wheel and check it, with a line of output per step."""
    begin = time.monotonic()
    # Always with the Paddle of this Python, regardless of the Python of the check: newer files, even if
    # equal, cause a rebuild.
    wheel = wheels.build(target, wheels.environment(target).site, folder)
    glibc = wheels.check_contents(wheel)
    seconds = time.monotonic() - begin
    print(f"{wheel}: built for {target} in {seconds:.0f} s; needs glibc {glibc}", flush=True)
    for python in pythons[:1] if target.emulated else pythons:
        begin = time.monotonic()
        environment = wheels.environment(target, python)
        wheels.install(environment, wheel)
        result = wheels.check(environment, target, TIMEOUT)
        where = f"emulated {target.processor}" if target.emulated else environment.site.parent.name
        print(f"{wheel.name}: checked on {where}: {result} ({time.monotonic() - begin:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
