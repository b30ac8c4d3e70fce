"""A rank table of HCCL: every rule that it breaks is named."""

import copy
import json
from pathlib import Path

import pytest
from doctor_host import card_host, on_card

from llm_npu.commands.doctor import main
from llm_npu.core import program
from llm_npu.doctor import rank_table
from llm_npu.doctor.checks import hccl

pytestmark = pytest.mark.sampled

TABLE = json.loads((Path(__file__).parent / "rank_table.json").read_text())
NODE1 = ("server_list", 1)
FIRST = (*NODE1, "device", 0)
BROKEN = [
    (("status",), "initializing", "status is 'initializing', "),
    (("version",), "1.2", "version is '1.2', "),
    (("server_count",), "3", "server_count is '3', "),
    (("server_list",), [], "server_list must be a list"),
    ((*NODE1, "server_id"), "node_0", "server_id node_0 "),
    ((*NODE1, "server_id"), "n" * 64, f"server_id is {'n' * 64!r}, "),
    ((*FIRST, "device_ip"), "192.168.0.10", "device_ip 192.168.0.10 "),
    ((*FIRST, "device_ip"), "host", "device_ip is 'host' in server 'node_1', "),
    ((*FIRST, "device_ip"), None, "device 0 of server 'node_1' has no device_ip"),
    ((*FIRST, "device_id"), "x", "device_id is 'x' in server 'node_1', "),
    ((*FIRST, "device_id"), "1", "device_id 1 "),
    ((*FIRST, "rank_id"), "7", "the 4 devices must have the unique rank_ids 0 to 3"),
]


def written(folder, place=(), value=None):
    table = copy.deepcopy(TABLE)
    if place:
        inside = table
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = value
    (folder / "table.json").write_text(json.dumps(table))
    return str(folder / "table.json")


def test_a_table_without_problems(tmp_path, capsys):
    file = written(tmp_path)
    assert main(["--rank_table", file]) == 0
    assert f"{file} has 4 rank(s) on 2 server(s)" in capsys.readouterr().out
    assert [finding.level for finding in hccl.values(on_card(card_host(tmp_path), RANK_TABLE_FILE=file))] == [
        "ok"
    ]


@pytest.mark.parametrize(("place", "value", "beginning"), BROKEN)
def test_a_broken_rule_is_named(tmp_path, place, value, beginning):
    (problem,) = rank_table.problems(written(tmp_path, place, value))
    assert problem.startswith(beginning)


def test_every_problem_is_printed_and_the_first_is_the_variables(tmp_path, capsys):
    file = written(tmp_path, ("version",), "2.0")
    assert main(["--rank_table", file, "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert all(key in finding["message"] for key in ("version", "'2.0'", "'1.0'"))
    (problem,) = hccl.values(on_card(card_host(tmp_path), RANK_TABLE_FILE=file))
    assert (
        problem.level == "error"
        and problem.message == f"RANK_TABLE_FILE is {str(file)!r}, and {finding['message']}"
    )


@pytest.mark.parametrize("content", [None, "", "[1]", "{", "\ud800"])
def test_a_file_that_is_no_table(tmp_path, capsys, content):
    file = tmp_path / "table.json"
    if content is not None:
        file.write_bytes(content.encode(errors="surrogatepass"))
    assert program.run(main, ["--rank_table", str(file)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    (finding,) = hccl.values(on_card(card_host(tmp_path), RANK_TABLE_FILE=str(file)))
    assert finding.level == "error" and "cannot be read" in finding.message


def test_the_addresses_that_hccn_tool_has_set(tmp_path):
    assert rank_table.addresses(tmp_path) == {}
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hccn.conf").write_text(
        "address_10=192.168.0.20\naddress_2=192.168.0.12\nnetmask_2=255.255.255.0\n# address_3=192.168.0.13\n"
    )
    assert list(rank_table.addresses(tmp_path).items()) == [("2", "192.168.0.12"), ("10", "192.168.0.20")]
    assert rank_table.addresses(tmp_path, "3,2") == {"3": "", "2": "192.168.0.12"}


def test_a_written_table_is_read_back(tmp_path):
    file = tmp_path / "made.json"
    servers = {
        server["server_id"]: {device["device_id"]: device["device_ip"] for device in server["device"]}
        for server in TABLE["server_list"]
    }
    assert rank_table.write(file, servers) == []
    assert json.loads(file.read_text()) == TABLE
    assert [path.name for path in tmp_path.iterdir()] == ["made.json"]


def test_a_table_that_breaks_a_rule_is_not_written(tmp_path):
    servers = {"10.0.0.1": {"0": "192.168.0.10"}, "10.0.0.2": {}}
    (problem,) = rank_table.write(tmp_path / "made.json", servers)
    assert problem.startswith("server '10.0.0.2' must have a list device")
    assert not list(tmp_path.iterdir())
