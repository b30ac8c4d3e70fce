"""Rank tables: JSON files for HCCL with the servers of a run, their devices and the devices' ranks.

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

from llm_npu.core.untrusted import plain_json
from paddle_fused import strict_json
from paddle_fused.cann_installation import content

LONGEST_ID = 63  # maximum characters of a server_id
# The addresses set by hccn_tool, by device number: address_0=192.168.1.8 and so on.
HCCN = "etc/hccn.conf"


def problems(file: str | Path) -> list[str]:
    """A sentence for each rule that the rank table ``file`` violates.

    Raises UserError or OSError if the file is not a JSON object.
    """
    return _problems(plain_json.mapping(file))


def addresses(root: Path, visible: str | None = None) -> dict[str, str]:
    """The devices of this machine and their addresses in ``HCCN`` below ``root``; "" if a device has none.

    Args:
        visible: comma-separated device numbers, as in ASCEND_RT_VISIBLE_DEVICES; None for all devices with an
            address.
    """
    address_of = dict(re.findall(r"^\s*address_(\d+)\s*=\s*(\S+)", content(root / HCCN), re.MULTILINE))
    if visible is None:
        return {device: address_of[device] for device in sorted(address_of, key=int)}
    devices = [entry.strip() for entry in visible.split(",") if entry.strip().isdecimal()]
    return {device: address_of.get(device, "") for device in devices}


def write(file: Path, servers: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Write the rank table of ``servers``, name -> device -> address, in order.

    If the table would violate a rule, nothing is written. Returns a sentence for each problem.
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
    if errors := _problems(table):
        return errors
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_text(strict_json.dumps(table, indent=2) + "\n")
    unfinished.replace(file)
    return []


def _problems(table: Mapping) -> list[str]:
    errors = [
        f"{name} is {table.get(name)!r}, but must be {value!r}"
        for name, value in (("status", "completed"), ("version", "1.0"))
        if table.get(name) != value
    ]
    servers = table.get("server_list")
    if not _are_objects(servers):
        return [*errors, "server_list must be a list of at least one server"]
    if _number(table.get("server_count")) != len(servers):
        errors.append(f"server_count is {table.get('server_count')!r}, but server_list has {len(servers)}")
    for server in servers:
        errors += _of_server(server, len(servers))
    errors += _repeated("server_id", (server.get("server_id") for server in servers))
    devices = [device for server in servers for device in _devices(server)]
    errors += _repeated("device_ip", (device.get("device_ip") for device in devices))
    ranks = sorted(rank for device in devices if (rank := _number(device.get("rank_id"))) is not None)
    if ranks != list(range(len(devices))):
        errors.append(f"the {len(devices)} devices must have the unique rank_ids 0 to {len(devices) - 1}")
    return errors


def counts(file: str | Path) -> tuple[int, int]:
    """The numbers of servers and of ranks in a rank table without problems."""
    servers = plain_json.mapping(file)["server_list"]
    return len(servers), sum(len(server["device"]) for server in servers)


def _of_server(server: dict, count: int) -> Iterator[str]:
    name = server.get("server_id")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID:
        yield f"server_id is {name!r}, but must be text of 1 to {LONGEST_ID} characters"
    if not _are_objects(server.get("device")):
        yield f"server {name!r} must have a list device with at least one device"
        return
    for device in server["device"]:
        if _number(device.get("device_id")) is None:
            yield f"device_id is {device.get('device_id')!r} in server {name!r}, but must be an integer"
        address = device.get("device_ip")
        if address is None and count > 1:
            number = device.get("device_id")
            yield f"device {number} of server {name!r} has no device_ip, which several servers require"
        elif address is not None and not _is_address(address):
            yield f"device_ip is {address!r} in server {name!r}, but must be an IPv4 or IPv6 address"
    for repeated in _repeated("device_id", (device.get("device_id") for device in server["device"])):
        yield f"{repeated} in server {name!r}"


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _devices(server: dict) -> list[dict]:
    return server["device"] if _are_objects(server.get("device")) else []


def _number(value: object) -> int | None:
    """A number of 0 or more, as a number or as text; otherwise None."""
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
            yield f"{name} {value} occurs {count} times, but must be unique"
