"""The installed CANN against the plugin: folders of every release and chip, and each part missing."""

import fake_cann
import pytest
from fake_cann import MKI, RELEASES, FakeCann

from llm_npu.cann import chip as chips
from llm_npu.cann.check import Gap, Report, compare
from llm_npu.cann.needs import of_plugin, symbols
from paddle_fused.cann_installation import find_cann, read_cann

NEEDS = of_plugin()


def report(cann: FakeCann, plugin, **more) -> Report:
    chip = chips.chips()[more.pop("chip", cann.chip)]
    environ = {"LD_LIBRARY_PATH": str(cann.lib64)}
    return compare(plugin, read_cann(cann.folder), chip, environ=environ, **more)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A whole CANN 9.0.0 for the 910B, and a plugin; tests rewrite one part and put it back."""
    folder = tmp_path_factory.mktemp("cann")
    cann = FakeCann(folder / "cann", "9.0.0", "A2").write()
    return cann, fake_cann.plugin(folder / "plugin", cann.lib64)


@pytest.mark.sampled
@pytest.mark.parametrize("chip", ["A2", "A3"])
@pytest.mark.parametrize("release", RELEASES)
def test_a_training_of_llama_finds_all_it_needs_in_every_release(tmp_path, release, chip):
    cann = FakeCann(tmp_path / "cann", release, chip).write()
    result = report(cann, fake_cann.plugin(tmp_path / "plugin", cann.lib64))
    missing = RELEASES[release]["missing"][chip]
    assert not result.stopping and not result.unreadable, result
    assert sorted(gap.name for gap in result.gaps) == sorted(missing)
    assert (result.functions, result.types) == (54, 34) and result.chip.name == chip
    assert read_cann(cann.folder).version == release


@pytest.mark.slow
def test_the_950_lacks_what_its_releases_lack(tmp_path):
    cann = FakeCann(tmp_path / "cann", "8.5.0", "950").write()
    result = report(cann, fake_cann.plugin(tmp_path / "plugin", cann.lib64))
    assert {gap.name for gap in result.stopping} == set(RELEASES["8.5.0"]["missing"]["950"])


def _without_function(cann, plugin, name: str) -> tuple[Gap, ...]:
    cann.without = {name}
    try:
        cann.write_functions()
        return report(cann, plugin).gaps
    finally:
        cann.without = set()
        cann.write_functions()


@pytest.mark.sampled
@pytest.mark.parametrize("name", NEEDS.functions_of_training)
def test_each_function_that_is_missing_is_named(installed, name):
    (gap,) = _without_function(*installed, name)
    kernels = [k for step in NEEDS.steps.values() for k in step if name in NEEDS.kernels[k].aclnn]
    unguarded = [k for k in kernels if name not in NEEDS.kernels[k].guarded]
    assert (gap.kind, gap.name, gap.stops) == ("function", name, bool(unguarded))
    assert any(kernel in gap.users for kernel in kernels)
    assert f"libopapi_{NEEDS.libraries[name]}.so" in gap.fix


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*NEEDS.types_of_training, *NEEDS.startup])
def test_each_type_that_is_missing_is_named(installed, name):
    cann, plugin = installed
    cann.without = {name}
    try:
        cann.write_operators()
        gaps = report(cann, plugin).gaps
    finally:
        cann.without = set()
        cann.write_operators()
    if name in ("Identity", "NPUClearFloatStatus", "NPUGetFloatStatus"):  # GE's own
        assert gaps == ()
    else:
        (gap,) = gaps
        assert (gap.kind, gap.name, gap.stops) == ("type", name, True)
        assert ("LLM_NPU_FLOAT_STATUS" in gap.fix) is (name == "NPUAllocFloatStatus")


def test_half_a_function_counts_as_missing(installed):
    cann, plugin = installed
    names = symbols(cann.functions)
    names.remove("aclnnMatmulGetWorkspaceSize")
    try:
        fake_cann.library(cann.lib64 / "libopapi.so", names, [cann.lib64 / "libnnopbase.so"])
        assert [gap.name for gap in report(cann, plugin).gaps] == ["aclnnMatmul"]
    finally:
        cann.write_libraries()


def test_a_function_of_the_users_own_operators_is_found(installed):
    cann, plugin = installed
    custom = fake_cann.library(cann.lib64 / "libcust_opapi.so", symbols(["aclnnScale"]))
    try:
        assert _without_function(cann, plugin, "aclnnScale") == ()
    finally:
        custom.unlink()


@pytest.mark.parametrize(
    ("dtypes", "name", "stops"),
    [
        ({"GatherV2": "float16,float"}, "GatherV2 for bfloat16", True),
        ({"RotaryMul": "bf16,float"}, "RotaryMul for float16", False),
        ({"ApplyAdamD": "float16"}, "ApplyAdamD for float32", True),
        ({"GatherV2": ""}, None, None),  # chosen at run time
    ],
)
def test_a_dtype_that_is_missing(installed, dtypes, name, stops):
    cann, plugin = installed
    cann.dtypes = dtypes
    try:
        cann.write_operators()
        gaps = report(cann, plugin).gaps
    finally:
        cann.dtypes = {}
        cann.write_operators()
    assert [(gap.name, gap.stops) for gap in gaps] == ([(name, stops)] if name else [])


def test_a_type_that_only_the_ai_cpu_has(installed):
    cann, plugin = installed
    cann.ai_cpu = {"OneHot"}
    try:
        cann.write_operators()
        (gap,) = report(cann, plugin).gaps
    finally:
        cann.ai_cpu = set()
        cann.write_operators()
    assert gap.name == "OneHot" and not gap.stops and "AI CPU" in gap.effect


def test_operators_of_another_chip(installed):
    cann, plugin = installed
    (gap,) = report(cann, plugin, chip="A3").gaps
    assert gap.kind == "chip" and gap.stops and "Ascend-cann-A3-ops" in gap.fix
    environ = {"LD_LIBRARY_PATH": str(cann.lib64)}
    result = compare(plugin, read_cann(cann.folder), None, environ=environ)
    assert result.chip.name == "A2" and not result.gaps  # the only chip with operators


@pytest.mark.slow
@pytest.mark.parametrize("name", ["libascendcl.so", "libhccl.so", "libopapi.so", "libnnopbase.so"])
def test_a_library_that_is_missing(tmp_path, name):
    cann = FakeCann(tmp_path / "cann", "8.3.RC1", "A2").write()
    plugin = fake_cann.plugin(tmp_path / "plugin", cann.lib64)
    (cann.lib64 / name).unlink()
    gaps = report(cann, plugin).stopping
    assert gaps[0].kind == "library" and gaps[0].name == name


@pytest.mark.slow
def test_a_cann_without_libopapi_names_the_forwarding_library(tmp_path):
    cann = FakeCann(tmp_path / "cann", "9.0.0", "A2", without={"libopapi.so"}).write()
    (gap,) = report(cann, fake_cann.plugin(tmp_path / "plugin", cann.lib64)).gaps
    assert gap.name == "libopapi.so" and "cann_bridge" in gap.fix


@pytest.mark.slow
@pytest.mark.parametrize("newer_plugin", [True, False])
def test_an_nnal_of_another_release(tmp_path, newer_plugin):
    cann = FakeCann(tmp_path / "cann", "8.5.0", "A2").write()
    fake_cann.library(cann.lib64 / "libmki.so", [MKI if newer_plugin else MKI + "b"])
    wanted = MKI + "b" if newer_plugin else MKI
    plugin = fake_cann.plugin(tmp_path / "plugin", cann.lib64, imports=[wanted], needs=["libmki.so"])
    (gap,) = report(cann, plugin).gaps
    assert gap.name == wanted and ("8.3.RC1 or later" in gap.effect) == newer_plugin


@pytest.mark.slow
def test_a_plugin_of_another_paddle(tmp_path):
    cann = FakeCann(tmp_path / "cann", "8.5.0", "A2").write()
    paddle = tmp_path / "paddle"
    core = fake_cann.library(paddle / "base/libpaddle.so", ["_ZN3phi3newEv"])
    for symbol, missing in (("_ZN3phi3newEv", []), ("_ZN3phi3oldEv", ["_ZN3phi3oldEv"])):
        folder = fake_cann.plugin(tmp_path / symbol, cann.lib64, imports=[symbol])
        assert [gap.name for gap in report(cann, folder, paddle=paddle).gaps] == missing
    core.write_bytes(b"not a library")
    assert "libpaddle.so" in report(cann, folder, paddle=paddle).unreadable[0]


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"[1]", b"{", b"\xff\xfe"])
def test_damaged_files_are_reported(tmp_path, content):
    cann = FakeCann(tmp_path / "cann", "8.5.0", "A2").write()
    plugin = fake_cann.plugin(tmp_path / "plugin", cann.lib64)
    (cann.lib64 / "libopapi.so").write_bytes(content)
    file = next((cann.folder / "opp").rglob("*legacy.json"))
    file.write_bytes(content)
    result = report(cann, plugin)
    assert len(result.unreadable) == 2 and str(file) in result.unreadable[1], result
    assert "could not be read" in result.summary()


@pytest.mark.slow
def test_two_releases_in_one_folder_are_seen(tmp_path):
    cann = FakeCann(tmp_path / "cann", "8.5.0", "A2").write()
    cann.text("share/info/ops-legacy/version.info", "Version=8.3.RC1\n")
    components = find_cann({"ASCEND_HOME_PATH": str(cann.folder)}, tmp_path).components
    assert components["ops-legacy"] == "8.3.RC1" and components["npu-runtime"] == "8.5.0"


ROW = "| {npu}     {name}          | OK            | 93.6        40                0    / 0        |\n"


@pytest.mark.parametrize(
    ("rows", "family"),
    [
        (["910B2"], "A2"),
        (["910B4-1", "910B4-1"], "A2"),
        (["Ascend910", "Ascend910"], "A3"),
        (["Ascend910_9391"], "A3"),
        (["950PR_957c"], "950"),
        (["910A"], None),
        (["910B"], None),  # the first 910
        ([], None),
    ],
)
def test_chips_of_npu_smi(rows, family):
    two_dies = rows[:1] == ["Ascend910"]
    text = "".join(ROW.format(npu=0 if two_dies else i, name=name) for i, name in enumerate(rows))
    chip = chips.of_npu_smi(text)
    assert (chip and chip.name) == family


@pytest.mark.parametrize(
    ("line", "family"), [("NPU Name : 9391", "A3"), ("Chip Name : 910B3", "A2"), ("", None)]
)
def test_chips_of_the_board(line, family):
    chip = chips.of_board(f"\tNPU ID                         : 0\n\t{line}\n")
    assert (chip and chip.name) == family
