"""A rank table: the JSON file that tells HCCL the servers of a run, their devices and the ranks on these.

    {"status": "completed", "version": "1.0", "server_count": "2", "server_list": [
        {"server_id": "node_0", "device": [
            {"device_id": "0", "device_ip": "192.168.1.8", "rank_id": "0"}, ...]}, ...]}

Numbers may be strings, as in HCCL's own examples. Source: "rank table" in HCCL's user guide, template 1,
https://www.hiascend.com/document/detail/zh/canncommercial/850/commlib/hcclug/hcclug_000068.html
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from llm_npu.cann.installation import content
from llm_npu.core.untrusted import plain_json
from paddle_fused import strict_json

LONGEST_ID = 63  # characters of a server_id
# The addresses that hccn_tool has set, address_0=192.168.1.8 and so on, by the device's number.
HCCN = "etc/hccn.conf"


def problems(file: str | Path) -> list[str]:
    """A sentence for each rule that the rank table ``file`` breaks.

    UserError and OSError if it is no JSON object.
    """
    return _problems(plain_json.mapping(file))


def addresses(root: Path, visible: str | None = None) -> dict[str, str]:
    """The devices of this machine, each with the address in ``HCCN`` below ``root``, or "".

    ``visible``: as ASCEND_RT_VISIBLE_DEVICES, numbers with commas; None takes all that have an address.
    """
    found = dict(re.findall(r"^\s*address_(\d+)\s*=\s*(\S+)", content(root / HCCN), re.MULTILINE))
    if visible is None:
        return {device: found[device] for device in sorted(found, key=int)}
    devices = [entry.strip() for entry in visible.split(",") if entry.strip().isdecimal()]
    return {device: found.get(device, "") for device in devices}


def write(file: Path, servers: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Write the rank table of ``servers``, in their order: name -> device -> address.

    Nothing is written, and a sentence returned for each problem, if the table would break a rule.
    """
    ranks = itertools.count()
    server_list = [
        {
            "server_id": name,
            "device": [
                {"device_id": device, "device_ip": address or None, "rank_id": str(next(ranks))}
                for device, address in devices.items()
            ],
        }
        for name, devices in servers.items()
    ]
    table = {
        "status": "completed",
        "version": "1.0",
        "server_count": str(len(server_list)),
        "server_list": server_list,
    }
    if found := _problems(table):
        return found
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_text(strict_json.dumps(table, indent=2) + "\n")
    unfinished.replace(file)
    return []


def _problems(table: Mapping) -> list[str]:
    found = [
        f"{name} is {table.get(name)!r}, and must be {value!r}"
        for name, value in (("status", "completed"), ("version", "1.0"))
        if table.get(name) != value
    ]
    servers = table.get("server_list")
    if not _are_objects(servers):
        return [*found, "server_list must be a list of servers, with one or more"]
    if _number(table.get("server_count")) != len(servers):
        found.append(f"server_count is {table.get('server_count')!r}, but server_list has {len(servers)}")
    for server in servers:
        found += _of_server(server, len(servers))
    found += _repeated("server_id", (server.get("server_id") for server in servers))
    devices = [each for server in servers for each in _devices(server)]
    found += _repeated("device_ip", (each.get("device_ip") for each in devices))
    ranks = sorted(rank for each in devices if (rank := _number(each.get("rank_id"))) is not None)
    if ranks != list(range(len(devices))):
        found.append(f"the {len(devices)} devices must have the rank_id 0 to {len(devices) - 1}, each once")
    return found


def counts(file: str | Path) -> tuple[int, int]:
    """The numbers of servers and of ranks in a rank table without problems."""
    servers = plain_json.mapping(file)["server_list"]
    return len(servers), sum(len(server["device"]) for server in servers)


def _of_server(server: dict, count: int) -> Iterator[str]:
    name = server.get("server_id")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID:
        yield f"server_id is {name!r}, and must be text of 1 to {LONGEST_ID} characters"
    if not _are_objects(server.get("device")):
        yield f"server {name!r} must have a list device, with one device or more"
        return
    for device in server["device"]:
        if _number(device.get("device_id")) is None:
            yield f"device_id is {device.get('device_id')!r} in server {name!r}, and must be a whole number"
        address = device.get("device_ip")
        if address is None and count > 1:
            number = device.get("device_id")
            yield f"device {number} of server {name!r} has no device_ip, which several servers need"
        elif address is not None and not _is_address(address):
            yield f"device_ip is {address!r} in server {name!r}, and must be an IPv4 or IPv6 address"
    for repeated in _repeated("device_id", (device.get("device_id") for device in server["device"])):
        yield f"{repeated} in server {name!r}"


def _are_objects(found: object) -> bool:
    return isinstance(found, list) and bool(found) and all(isinstance(each, dict) for each in found)


def _devices(server: dict) -> list[dict]:
    return server["device"] if _are_objects(server.get("device")) else []


def _number(value: object) -> int | None:
    """0 and above, as a number or as text; else None."""
    text = str(value) if type(value) in (int, str) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _is_address(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def _repeated(name: str, values: Iterable[object]) -> Iterator[str]:
    counted = Counter(str(value) for value in values if value is not None)
    for value, count in counted.items():
        if count > 1:
            yield f"{name} {value} stands there {count} times, and must be unique"
