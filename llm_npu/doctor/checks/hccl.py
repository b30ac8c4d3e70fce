"""The variables of HCCL, the cards' collective library: invalid values and addresses of other hosts.

Source: CANN's reference of environment variables, for Atlas A2. Ranges: HCCL_CONNECT_TIMEOUT envref_07_0077,
HCCL_IF_BASE_PORT envref_07_0074, HCCL_SOCKET_IFNAME (forms, and that HCCL_IF_IP comes first) envref_07_0075
of https://www.hiascend.com/document/detail/zh/canncommercial/800/apiref/envvar/.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable, Iterator, Mapping

from paddle_fused.cann_installation import content

from .. import rank_table as tables
from ..finding import Finding, error, ok, warning
from ..setup import Setup


def _whole(low: int, high: int, multiple: int = 1) -> Callable[[str], bool]:
    def accepts(value: str) -> bool:
        digits = value.isascii() and value.isdigit() and len(value) <= DIGITS
        return digits and low <= int(value) <= high and int(value) % multiple == 0

    return accepts


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value in values


LONGEST = 2147483647
DIGITS = 20  # maximum digits of a number; Python rejects thousands of digits
SHOWN = 80  # displayed characters of a value
# Number of ports from the base port on, according to CANN 8.3's reference (16 before). Occupied ports caused
# the failures in https://github.com/vllm-project/vllm-ascend/issues/405.
PORTS = 32
USED_BY_ALL = 16  # ports used by every version of CANN
SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B  # <linux/sockios.h>
# For each variable, the description of accepted values, and the predicate.
VALUES: dict[str, tuple[str, Callable[[str], bool]]] = {
    "HCCL_CONNECT_TIMEOUT": ("seconds, from 120 to 7200", _whole(120, 7200)),
    "HCCL_EXEC_TIMEOUT": (f"seconds, from 0 (none) to {LONGEST}", _whole(0, LONGEST)),
    "HCCL_BUFFSIZE": ("megabytes, 1 or more", _whole(1, LONGEST)),
    "HCCL_IF_BASE_PORT": ("a port from 1024 to 65520", _whole(1024, 65520)),
    "HCCL_RDMA_TC": ("a multiple of 4, from 0 to 252", _whole(0, 252, 4)),
    "HCCL_RDMA_SL": ("0 to 7", _whole(0, 7)),
    "HCCL_INTRA_PCIE_ENABLE": ("0 or 1", _one_of("0", "1")),
    "HCCL_INTRA_ROCE_ENABLE": ("0 or 1", _one_of("0", "1")),
    "HCCL_WHITELIST_DISABLE": ("0 or 1", _one_of("0", "1")),
    "HCCL_DETERMINISTIC": ("true, false or strict", _one_of("true", "false", "strict")),
    "HCCL_OP_EXPANSION_MODE": (
        "AI_CPU, AIV, HOST or HOST_TS",
        _one_of("AI_CPU", "AIV", "HOST", "HOST_TS"),
    ),
    "HCCL_SOCKET_FAMILY": ("AF_INET or AF_INET6", _one_of("AF_INET", "AF_INET6")),
}


def values(setup: Setup) -> Iterator[Finding]:
    """Values of HCCL's environment variables. A run does not start with invalid values (with `--device
    cpu`, they are only warnings).

    A problem: a value that HCCL rejects; an address or an interface that this host does not have; an
    interface without an IPv4 address; an occupied port in the range from `HCCL_IF_BASE_PORT`; an invalid
    `RANK_TABLE_FILE`.
    """
    judge = warning if setup.kind == "cpu" else error
    findings = []
    for name, (accepted, accepts) in VALUES.items():
        value = setup.environ.get(name)
        if value and not accepts(value):
            fix = f"Set an accepted value, or run `unset {name}`."
            findings.append(judge("hccl", f"{name} is {_shown(value)}; accepted: {accepted}", fix))
    findings += _address(setup, judge)
    findings += _interface(setup, judge)
    findings += _listened_on(setup, judge)
    if file := setup.environ.get("RANK_TABLE_FILE"):
        findings += _rank_table(file, judge)
    yield from findings or [ok("hccl", "HCCL accepts the values of all variables")]


def _address(setup: Setup, judge) -> Iterator[Finding]:
    value = setup.environ.get("HCCL_IF_IP")
    if not value:
        return
    fix = "Set it to this host's own address (`ip addr`), or run `unset HCCL_IF_IP`."
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        yield judge("hccl", f"HCCL_IF_IP is {_shown(value)}, which is not an address", fix)
        return
    if address.is_unspecified or address.is_multicast:  # can be bound, but is not an address of a host
        yield judge("hccl", f"HCCL_IF_IP is {value}, which is not a host address", fix)
    elif not _is_own(address):
        yield judge("hccl", f"HCCL_IF_IP is {value}, which is not an address of this host", fix)


def _is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether this host has ``address``. A link-local address may be on any interface, or on a given one."""
    family, text, links = socket.AF_INET, str(address), [()]
    if address.version == 6:
        family, (text, _, link) = socket.AF_INET6, text.partition("%")
        links = [(0, number) for number, name in socket.if_nameindex() if link in ("", name, str(number))]
    for more in links:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as here:
                here.bind((text, 0, *more))
                here.connect((text, 9, *more))  # sends nothing; raises EACCES for a broadcast address
            return True
        except OSError:  # EADDRNOTAVAIL, EINVAL for an address of another link, EAFNOSUPPORT without IPv6
            pass
    return False


def _shown(value: str) -> str:
    """``value`` in quotes, escaped and truncated."""
    return repr(value if len(value) <= SHOWN else f"{value[:SHOWN]}...")


def _interface(setup: Setup, judge) -> Iterator[Finding]:
    value = setup.environ.get("HCCL_SOCKET_IFNAME")
    if not value:
        return
    names = [name for _, name in socket.if_nameindex()]
    matching = _matching(value, names)
    fix = "Set another interface, or run `unset HCCL_SOCKET_IFNAME`."
    if not matching:
        what = f"HCCL_SOCKET_IFNAME is {_shown(value)}, which matches none of this host's {', '.join(names)}"
        yield judge("hccl", what, fix)
    elif setup.environ.get("HCCL_SOCKET_FAMILY") != "AF_INET6" and not any(map(_address_of, matching)):
        what = f"HCCL_SOCKET_IFNAME is {_shown(value)}, and {', '.join(matching)} has no IPv4 address"
        yield judge("hccl", what, fix)


def _matching(value: str, names: list[str]) -> list[str]:
    """Names that match ``eth,enp`` (prefixes) or ``=eth0`` (exact). A leading ``^`` inverts the selection."""
    others, exact = value.startswith("^"), value.removeprefix("^").startswith("=")
    wanted = [part for part in value.lstrip("^=").split(",") if part]
    return [
        name
        for name in names
        if any(name == part if exact else name.startswith(part) for part in wanted) != others
    ]


def _address_of(interface: str, request: int = SIOCGIFADDR) -> str | None:
    """The IPv4 address of a network interface of this host, or its netmask; None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            reply = fcntl.ioctl(any_socket, request, struct.pack("16s240x", interface.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(reply[20:24])


def subnet(environ: Mapping[str, str]) -> str | None:
    """The IPv4 network of HCCL's first interface, for example 10.77.0.0/24; None if unknown.

    The interface is the one with the address `HCCL_IF_IP`, else the first match of `HCCL_SOCKET_IFNAME`, else
    the first by name except `lo` and Docker's.
    """
    names = sorted(name for _, name in socket.if_nameindex())
    chosen = _matching(environ.get("HCCL_SOCKET_IFNAME") or "^lo,docker", names)
    own = environ.get("HCCL_IF_IP")
    addresses = {name: address for name in (names if own else chosen) if (address := _address_of(name))}
    for name, address in addresses.items():
        if own in (None, "", address):
            mask = _address_of(name, SIOCGIFNETMASK)
            return str(ipaddress.ip_network(f"{address}/{mask}", strict=False))
    return None


def _listened_on(setup: Setup, judge) -> Iterator[Finding]:
    """Only checked if the variable is set, because another run on this host may use the default ports."""
    value = setup.environ.get("HCCL_IF_BASE_PORT")
    if not value or not VALUES["HCCL_IF_BASE_PORT"][1](value):
        return
    for port in range(int(value), int(value) + USED_BY_ALL):
        with socket.socket() as here:
            here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                here.bind(("", port))
            except OSError as failure:
                if failure.errno != errno.EADDRINUSE:
                    raise
                what = f"HCCL_IF_BASE_PORT is {value}, and another program listens on port {port}"
                yield judge("hccl", what, f"Set it to the first of {USED_BY_ALL} consecutive free ports.")
                return


def rank_table(file: str) -> list[Finding]:
    """The findings on a rank table. Raises UserError or OSError if it is not a JSON object."""
    fix = "Correct the file, or let the cluster's scheduler write it again."
    findings = [error("rank table", what, fix) for what in tables.problems(file)]
    if findings:
        return findings
    servers, ranks = tables.counts(file)
    return [ok("rank table", f"{file} has {ranks} rank(s) on {servers} server(s)")]


def _rank_table(file: str, judge) -> Iterator[Finding]:
    fix = "Check it with `llm-npu doctor --rank_table FILE`, or run `unset RANK_TABLE_FILE`."
    try:
        errors = tables.problems(file)
    except OSError as failure:
        errors = [f"it cannot be read: {failure.strerror}"]
    except ValueError as failure:  # not a JSON object, or an invalid file name
        errors = [str(failure)]
    if errors:
        yield judge("hccl", f"RANK_TABLE_FILE is {file!r}, and {errors[0]}", fix)


def ports(setup: Setup) -> Iterator[Finding]:
    """The ports that HCCL listens on, from `HCCL_IF_BASE_PORT` on, and the system's ephemeral ports.

    A problem: ports that `net.ipv4.ip_local_reserved_ports` does not reserve. If another program occupies
    one, HCCL cannot start (EJ0003, EI0019).
    """
    base = setup.environ.get("HCCL_IF_BASE_PORT") or "60000"
    if setup.kind != "card" or not VALUES["HCCL_IF_BASE_PORT"][1](base):
        return  # no card, or already reported by the check of values
    ephemeral, kept = (
        content(setup.root / f"proc/sys/net/ipv4/ip_local_{name}")
        for name in ("port_range", "reserved_ports")
    )
    first, last = int(base), int(base) + PORTS - 1
    low, high = map(int, ephemeral.split() or (0, -1))
    reserved = set().union(*map(_port_range, kept.strip().split(","))) if kept.strip() else set()
    taken = {*range(first, last + 1)} & {*range(low, high + 1)} - reserved
    if not taken:
        yield ok("ports", f"ports {first} to {last} are reserved for HCCL")
        return
    keep = ",".join(filter(None, [kept.strip(), f"{first}-{last}"]))
    what = (
        f"HCCL listens on ports {first} to {last}, but the system may assign {min(taken)} to another program"
    )
    yield warning("ports", what, f"Run `sysctl -w net.ipv4.ip_local_reserved_ports={keep}` on the host.")


def _port_range(text: str) -> range:
    """The ports of a range such as ``60000-60031``, or of a single number."""
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)


CHECKS = {"hccl": values, "ports": ports}
