"""``llm_npu.device``: looking for cards in made-up folders of device nodes and packages, and choosing."""

import os
import sys

import paddle
import pytest

from llm_npu import config
from llm_npu.core.errors import UserError
from llm_npu.device import (
    CHECK_VARIABLE,
    Device,
    VisibleCards,
    decide,
    find_cards,
    select,
    set_checks,
)
from virtual_npu.activation import LIBRARY, PLUGIN_FOLDER, SITE_FOLDER

CARDS = VisibleCards(plugin=None, count=2, missing=())
NO_CARD = VisibleCards(plugin=None, count=0, missing=("there is no card (no /dev/davinci<N>)",))


@pytest.fixture
def machine(tmp_path):
    """Folders as on a machine with two cards and paddle-custom-npu: (dev, site_packages)."""
    dev, site_packages = tmp_path / "dev", tmp_path / "site-packages"
    dev.mkdir()
    for node in ("davinci0", "davinci4", "davinci_manager", "hisi_hdc"):
        (dev / node).touch()
    (site_packages / "paddle_custom_device").mkdir(parents=True)
    (site_packages / "paddle_custom_device" / LIBRARY).touch()
    return dev, site_packages


# ---- looking for cards --


def test_complete_machine_has_its_cards(machine):
    dev, site_packages = machine
    assert find_cards(dev, site_packages, {}) == VisibleCards(site_packages / "paddle_custom_device", 2, ())


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("visible", "count"), [("0,1", 2), ("1", 1), (" 0 , 1 ", 2), ("0,1,2,3", 2), ("", 0), ("none", 0)]
)
def test_visible_devices_hide_cards(machine, visible, count):
    card = find_cards(*machine, {"ASCEND_RT_VISIBLE_DEVICES": visible})
    assert card.count == count
    assert (card.missing == ()) == (count > 0)
    if count == 0:
        assert f"ASCEND_RT_VISIBLE_DEVICES={visible!r} hides every card" in card.missing


def test_everything_that_is_missing_is_named(tmp_path):
    card = find_cards(tmp_path, tmp_path, {})
    assert card.plugin is None and card.count == 0
    package, driver, node = card.missing
    assert "paddle-custom-npu is not installed" in package
    assert str(tmp_path / "davinci_manager") in driver
    assert str(tmp_path / "davinci<N>") in node


@pytest.mark.sampled
@pytest.mark.parametrize("removed", ["davinci_manager", "package"])
def test_a_card_needs_all_its_parts(machine, removed):
    dev, site_packages = machine
    (site_packages / "paddle_custom_device" / LIBRARY if removed == "package" else dev / removed).unlink()
    assert len(find_cards(dev, site_packages, {}).missing) == 1


def test_by_default_the_package_is_looked_for_beside_paddle(machine, run_python):
    dev, site_packages = machine
    (site_packages / "paddle").mkdir()
    (site_packages / "paddle" / "__init__.py").write_text("raise SystemExit('imported')")
    code = (
        "import pathlib, sys; from llm_npu.device import find_cards\n"
        "print(find_cards(pathlib.Path(sys.argv[1]), environ={}).plugin)"
    )
    result = run_python("-c", code, dev, PYTHONPATH=str(site_packages))
    assert result.stdout == f"{site_packages / 'paddle_custom_device'}\n", result.stderr


def test_custom_device_root_names_a_plugin_for_cards_but_never_the_virtual_one(machine, tmp_path):
    dev, site_packages = machine
    elsewhere = tmp_path / "built"
    elsewhere.mkdir()
    (elsewhere / LIBRARY).touch()
    assert find_cards(dev, tmp_path, {"CUSTOM_DEVICE_ROOT": str(elsewhere)}).plugin == elsewhere
    installed = site_packages / "paddle_custom_device"
    assert find_cards(dev, site_packages, {"CUSTOM_DEVICE_ROOT": str(PLUGIN_FOLDER)}).plugin == installed


# ---- the choice --


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "card", "expected"),
    [
        ("npu", CARDS, ("npu", "card")),
        ("npu:1", CARDS, ("npu:1", "card")),
        ("npu:card", CARDS, ("npu", "card")),
        ("virtual_npu", CARDS, ("npu", "virtual")),
        ("virtual_npu:7", CARDS, ("npu:7", "virtual")),
        ("cpu", CARDS, ("cpu", "cpu")),
        ("npu", NO_CARD, ("npu", "virtual")),
        ("npu:7", NO_CARD, ("npu:7", "virtual")),
        ("virtual_npu", NO_CARD, ("npu", "virtual")),
    ],
)
def test_decision(name, card, expected):
    device = decide(name, card, virtual_is_active=False, virtual_count=8)
    assert (device.name, device.kind) == expected
    assert device.reason and "\n" not in device.reason


def test_reason_for_the_virtual_one_is_short():
    assert decide("npu", NO_CARD, False, 8).reason == "no Ascend card was found"


def test_environment_that_chose_the_virtual_one_is_followed_unless_the_card_is_asked_for():
    assert decide("npu", CARDS, True, 8).kind == "virtual"
    assert decide("npu:card", CARDS, True, 8).kind == "card"


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name", ["gpu", "npu:", "npu:-1", "npu:x", "NPU", "", "cpu:0", "npu:card:1", "npu:٣"]
)
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match=f"{name!r} .*: npu .*npu:card, cpu"):
        decide(name, CARDS, False, 8)


def test_ids_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"npu:8 .* 8 virtual NPUs, .* 0 to 7; VIRTUAL"):
        decide("npu:8", NO_CARD, False, 8)
    with pytest.raises(ValueError, match=r"npu:2 .* 2 Ascend cards, .* 0 to 1; ASCEND"):
        decide("npu:2", CARDS, False, 8)


def test_card_that_is_not_there_is_refused_with_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"npu:card .*paddle-custom-npu .*driver.*no card.*npu"):
        decide("npu:card", find_cards(tmp_path, tmp_path, {}), False, 8)


# ---- select, in this process --


def test_select_with_paddle_imported_accepts_what_is_in_force():
    assert "paddle" in sys.modules
    assert select("npu:3") == Device("npu:3", "virtual", "the environment has chosen the virtual NPU")
    with pytest.raises(RuntimeError, match="already imported"):
        select("cpu")
    assert paddle.device.get_all_custom_device_type() == ["npu"]


# ---- select, in new processes --

SELECT = """\
import sys
from llm_npu.device import select
try:
    device = select(sys.argv[1])
except (ValueError, RuntimeError) as error:
    sys.exit(f"{type(error).__name__}: {error}")
assert "paddle" not in sys.modules
import paddle
paddle.set_device(device.name)
print(device.kind, paddle.ones([1]).place, paddle.device.get_all_custom_device_type())
"""


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("npu", "virtual Place(npu:0) ['npu']\n"),
        ("npu:2", "virtual Place(npu:2) ['npu']\n"),
        ("virtual_npu", "virtual Place(npu:0) ['npu']\n"),
        ("cpu", "cpu Place(cpu) []\n"),
    ],
)
def test_select_before_paddle(run_python, name, printed):
    result = run_python("-c", SELECT, name, ASCEND_RT_VISIBLE_DEVICES="")
    assert (result.returncode, result.stdout) == (0, printed), result.stderr


@pytest.mark.slow
def test_select_cpu_leaves_an_activated_environment(run_python):
    result = run_python("-m", "virtual_npu", "-c", SELECT, "cpu")
    assert (result.returncode, result.stdout) == (0, "cpu Place(cpu) []\n"), result.stderr


def test_select_card_without_one(run_python):
    result = run_python("-c", SELECT, "npu:card", ASCEND_RT_VISIBLE_DEVICES="")
    assert result.returncode == 1
    assert result.stderr.startswith("UserError: npu:card ")


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["virtual_npu", "cpu"])
def test_variables_of_the_host_kernels_are_checked_before_paddle_is_imported(run_python, name):
    result = run_python("-c", SELECT, name, PADDLE_FUSED_MALLOC="always")
    assert result.returncode == 1
    assert result.stderr.startswith("UserError: PADDLE_FUSED_MALLOC is 'always'; accepted: 'keep'")


@pytest.mark.slow
def test_launcher_decides_the_id_when_none_is_asked_for(run_python):
    result = run_python("-c", SELECT, "virtual_npu", FLAGS_selected_npus="5")
    assert result.stdout == "virtual Place(npu:5) ['npu']\n", result.stderr


@pytest.mark.slow
def test_real_package_is_not_picked_up_when_the_virtual_one_is_forced(run_python, tmp_path):
    (tmp_path / "paddle_custom_device").mkdir()
    (tmp_path / "paddle_custom_device" / "__init__.py").write_text(
        "raise SystemExit('the package for cards')"
    )
    code = "import sys\nfrom llm_npu.device import select\nselect('virtual_npu')\n"
    code += "import paddle_custom_device\nprint(paddle_custom_device.__file__)"
    result = run_python("-c", code, PYTHONPATH=str(tmp_path))
    assert result.stdout == os.path.join(SITE_FOLDER, "paddle_custom_device", "__init__.py") + "\n", (
        result.stderr
    )


# ---- checks of the virtual NPU --


@pytest.mark.parametrize("device", ["cpu", "card"])
def test_checks_need_the_virtual_npu(device):
    with pytest.raises(UserError, match="--check_device race needs the virtual NPU"):
        set_checks("race", device)


def test_checks_are_refused_in_dry_runs(monkeypatch):
    monkeypatch.setenv("VIRTUAL_NPU_DRY", "1")
    with pytest.raises(UserError, match="dry run"):
        set_checks("race", "virtual")


def test_checks_must_agree_with_the_environment(monkeypatch):
    monkeypatch.setenv(CHECK_VARIABLE, "init")
    with pytest.raises(UserError, match="VIRTUAL_NPU_CHECK=init"):
        set_checks("race", "virtual")
    set_checks("init", "virtual")
    assert os.environ[CHECK_VARIABLE] == "init"


@pytest.mark.parametrize("checks", ["rac", "race,race", "", "race, init"])
def test_unknown_checks_are_refused(checks):
    with pytest.raises(UserError, match="race, init, memory, sync"):
        config.read(["--check_device", checks])


def test_checks_in_a_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("check_device: [race, sync]\n")
    assert config.read(["--config", str(file)]).early.check_device == "race,sync"
