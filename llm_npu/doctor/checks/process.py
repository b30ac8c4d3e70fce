"""The outcome of the process that imported paddle, and the fixes."""

from __future__ import annotations

from collections.abc import Iterator

from paddle_fused import libraries

from ..finding import Finding, error, ok
from ..probe import DEVICE, HOST_OPERATORS, LIBRARY, OPERATORS, PADDLE, STAGES, Probe, run_probe
from ..setup import Setup
from .packages import INSTALL

SET_ENV = "Run `source /usr/local/Ascend/ascend-toolkit/set_env.sh` in this shell"
PLUGIN_CURE = (
    "Install the plugin of this Paddle: the same version of paddle-custom-npu, or the virtual NPU by "
    "`pip install .` in the project's folder."
)
CURES = {
    PADDLE: f"Reinstall Paddle: `pip install --force-reinstall paddlepaddle`, or all of it: {INSTALL}",
    DEVICE: PLUGIN_CURE,
    OPERATORS: PLUGIN_CURE,
    HOST_OPERATORS: libraries.how_to_build(),
    LIBRARY: f"Install PaddleNLP or PaddleFormers with the packages that it works with. {INSTALL}",
}
OF_CANN = ("libascend", "libacl", "libhccl", "libge_", "libopapi", "libnnopbase")


def stages(setup: Setup) -> Iterator[Finding]:
    """Paddle, a product on the device, the host operators and the library of models, in another process.

    A problem: whatever fails, crashes or hangs; a plugin that Paddle did not load.
    """
    probe = setup.probe
    if probe.during == PADDLE or PADDLE in probe.failed:
        yield _no_paddle(setup, probe)
        return
    for stage, message in probe.failed.items():
        if stage == HOST_OPERATORS and not libraries.is_built(libraries.folder()):
            continue  # reported by the check of the plugin
        yield error("process", f"{stage} failed: {message}", _fix(stage, message))
    if probe.ended:
        yield error("process", f"{probe.during} {probe.ended}", _fix(probe.during, probe.ended))
    passed = [stage for stage in STAGES if probe.passed(stage)]
    facts = probe.facts
    versions = f"paddle {facts['paddle']}"
    if "library" in facts:
        versions += f", {facts['library']}"
    computed = f"; a product was correct on {facts['computed_on']}" if DEVICE in passed else ""
    yield ok("process", f"imported {versions}{computed}")
    if DEVICE in passed and facts["computed_on"] == "cpu" and _has_plugin(setup):
        what = "Paddle has loaded no device plugin: it has no device npu"
        yield error("process", what, PLUGIN_CURE)


def _no_paddle(setup: Setup, probe: Probe) -> Finding:
    """Paddle cannot be imported, although it may be without a device plugin."""
    message = probe.failed.get(PADDLE) or probe.ended
    what = f"{PADDLE} failed: {message}" if PADDLE in probe.failed else f"{PADDLE} {message}"
    if _has_plugin(setup):
        alone = run_probe({**setup.environ, "CUSTOM_DEVICE_ROOT": ""}, setup.timeout, [PADDLE])
        if alone.passed(PADDLE):
            what = f"with the device plugin {what}; without it, the import succeeds"
            return error("process", what, _fix(DEVICE, message))
    return error("process", what, _fix(PADDLE, message))


def _has_plugin(setup: Setup) -> bool:
    try:
        return setup.variables_of_device()["CUSTOM_DEVICE_ROOT"] != ""
    except (RuntimeError, ValueError):
        return False


def _fix(stage: str, message: str) -> str:
    if "did not end" in message:
        return (
            "Give it longer (--timeout); if it never ends, look for a device that another process holds, "
            f"and {CURES[stage][0].lower()}{CURES[stage][1:]}"
        )
    if any(library in message for library in OF_CANN):
        return f"{SET_ENV}: the libraries of CANN were not found. {CURES[stage]}"
    return CURES[stage]


CHECKS = {"process": stages}
