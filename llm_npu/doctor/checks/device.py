"""The device of a run, its plugin and operators, and a process that imports paddle."""

from __future__ import annotations

from collections.abc import Iterator

import virtual_npu
from paddle_fused import libraries

from ..finding import Finding, error, ok, warning
from ..probe import DEVICE, HOST_OPERATORS, LIBRARY, OPERATORS, PADDLE, STAGES, Probe, run_probe
from ..setup import Setup
from .packages import INSTALL

NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")  # opened by CANN in addition to the card's node


def chosen(setup: Setup) -> Iterator[Finding]:
    """The device that `--device` selects; the driver's nodes, `ASCEND_RT_VISIBLE_DEVICES`, `VIRTUAL_NPU_*`.

    A problem: an unavailable device; an unknown or invalid setting of the virtual NPU.
    """
    try:
        device = setup.device
    except ValueError as failure:
        yield error("device", str(failure), "Correct the device or the variable in the message.")
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


def files(setup: Setup) -> Iterator[Finding]:
    """The native libraries: their location, and the Paddle version and C++ sources of their build.

    A problem: libraries that are not built, hidden by a folder with other sources, or built for another
    Paddle or from sources that differ from those next to them.
    """
    try:
        libraries.check_built()
        if setup.kind == "virtual":
            setup.variables_of_device()
    except libraries.SetupError as failure:
        yield error("plugin", failure.message, failure.fix)
        return
    except ValueError:
        return  # reported by the check of the device
    if libraries.is_outdated():
        what = f"the native libraries in {libraries.ROOT} were built from different C++ sources"
        yield warning("plugin", what, libraries.how_to_build())
    elif setup.kind == "virtual":
        yield ok("plugin", f"the virtual NPU in {libraries.folder()} was built for the installed Paddle")


SET_ENV = "Run `source /usr/local/Ascend/ascend-toolkit/set_env.sh` in this shell"
PLUGIN_FIX = (
    "Install the plugin for this Paddle: the same version of paddle-custom-npu, or the virtual NPU with "
    "`pip install .` in the project's folder."
)
FIXES = {
    PADDLE: f"Reinstall Paddle: `pip install --force-reinstall paddlepaddle`, or everything: {INSTALL}",
    DEVICE: PLUGIN_FIX,
    OPERATORS: PLUGIN_FIX,
    HOST_OPERATORS: libraries.how_to_build(),
    LIBRARY: f"Install PaddleNLP or PaddleFormers with matching packages. {INSTALL}",
}
OF_CANN = ("libascend", "libacl", "libhccl", "libge_", "libopapi", "libnnopbase")


def stages(setup: Setup) -> Iterator[Finding]:
    """Paddle, a matmul on the device, the host operators and the model library, in a separate process.

    A problem: a failure, a crash or a hang; a plugin that Paddle did not load.
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
    computed = f"; a matmul was correct on {facts['computed_on']}" if DEVICE in passed else ""
    yield ok("process", f"imported {versions}{computed}")
    if DEVICE in passed and facts["computed_on"] == "cpu" and _has_plugin(setup):
        what = "Paddle loaded no device plugin, so there is no device npu"
        yield error("process", what, PLUGIN_FIX)


def _no_paddle(setup: Setup, probe: Probe) -> Finding:
    """The finding if Paddle cannot be imported. Also tries the import without a device plugin."""
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
            "Increase --timeout; if it still does not end, check for another process that holds the device, "
            f"and {FIXES[stage][0].lower()}{FIXES[stage][1:]}"
        )
    if any(library in message for library in OF_CANN):
        return f"{SET_ENV}: the libraries of CANN were not found. {FIXES[stage]}"
    return FIXES[stage]


# Operators with positional arguments: (inputs, attributes) of each known signature.
FORMS: dict[str, dict[tuple[int, int], str]] = {
    "flash_attention_npu": {
        (7, 6): "13 arguments, lengths as tensors",
        (5, 8): "13 arguments, lengths as lists",
        (5, 5): "10 arguments, without lengths",
    },
    "rms_norm_npu": {(2, 1): ""},
    "fused_rope": {(3, 0): ""},
    "fused_mm_allreduce": {(3, 3): ""},
    "fused_allgather_mm": {(3, 5): ""},
    "fused_mm_reduce_scatter": {(3, 4): ""},
}
SAME_PADDLE = "Install the version of paddle-custom-npu that equals the version of paddlepaddle."


def signatures(setup: Setup) -> Iterator[Finding]:
    """Inputs and attributes of the plugin's operators.

    A problem: a missing operator, or arguments that differ from all public versions.
    """
    facts = setup.probe.facts
    if setup.kind == "cpu" or not setup.probe.passed(OPERATORS) or facts.get("computed_on") == "cpu":
        return  # no plugin, or a broken one; the checks of plugin and process report the reason
    yield from judged(facts["operators"])


def judged(by_operator: dict[str, dict[str, list[str]] | None]) -> list[Finding]:
    """The findings on operator signatures; None means that the plugin lacks the operator."""
    findings, forms = [], []
    for name, signature in by_operator.items():
        if signature is None:
            what = f"the plugin has no operator {name}; a slower composition replaces it"
            findings.append(warning("signatures", what, SAME_PADDLE))
            continue
        inputs, attributes = signature["inputs"], signature["attributes"]
        form = FORMS[name].get((len(inputs), len(attributes)))
        if form is None:
            what = f"{name} has the arguments ({', '.join([*inputs, *attributes])}), not a known signature"
            findings.append(error("signatures", what, SAME_PADDLE))
        else:
            forms.append(f"{name} ({form})" if form else name)
    if forms:
        findings.append(ok("signatures", f"signatures as expected: {', '.join(forms)}"))
    return findings


CHECKS = {"device": chosen, "plugin": files, "process": stages, "signatures": signatures}
