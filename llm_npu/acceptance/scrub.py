"""Removes names of hosts, users and folders, and addresses, from program output."""

from __future__ import annotations

import getpass
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# An absolute path with at least two components, so "and/or" and "a / b" do not match. The file name is kept:
# it shows what failed, while a folder name may identify a person or a project.
_PATH = re.compile(
    r"(?<![\w.:/<>])(?:~[\w.-]*|file:/{1,2})?(?:/[\w.+@%~=-]+){2,}/?|(?<![\w/])~[\w.-]*/[\w.+@%~/-]*"
)
_FILE = re.compile(
    r"[\w+-]+\.(?:py|so|cc|h|cpp|json|jsonl|csv|db|log|info|cfg|sh|safetensors|html)(?:\.\d+)*"
)
_EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]*\w")
_MAC = re.compile(r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b", re.IGNORECASE)
_IPV6 = re.compile(r"(?<![\w:])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:])", re.IGNORECASE)
# Four numbers are an IP address, unless a preceding word marks them as a version.
_IPV4 = re.compile(
    r"(\b(?:version|driver|CANN|firmware)\W{1,3})?(?<![\d.])(\d{1,3}(?:\.\d{1,3}){3})(?!\.?\d)", re.IGNORECASE
)
NOBODY = {"root", "localhost"}


class Scrubber:
    """Replaces the names of this host and its user."""

    def __init__(self, environ: Mapping[str, str] = os.environ, hosts: set[str] | None = None):
        hosts = _host_names() if hosts is None else hosts
        words = dict.fromkeys(hosts, "<host>") | dict.fromkeys(_users(environ), "<user>")
        self._words = [
            (re.compile(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", re.IGNORECASE), name)
            for word, name in sorted(words.items(), key=lambda item: -len(item[0]))
        ]

    def text(self, text: str) -> str:
        """``text`` without these names."""
        text = _EMAIL.sub("<address>", text)
        text = _PATH.sub(_kept_file, text)
        for word, name in self._words:
            text = word.sub(name, text)
        return _IPV4.sub(_kept_version, _IPV6.sub(_kept_time, _MAC.sub("<address>", text)))


def _kept_file(match: re.Match) -> str:
    last = match[0].rstrip("/").rpartition("/")[2]
    return f"<path>/{last}" if _FILE.fullmatch(last) else "<path>"


def _kept_version(match: re.Match) -> str:
    return match[0] if match[1] else "<address>"


def _kept_time(match: re.Match) -> str:
    """Keep times of day and Python slices (``[::2]``), which also contain colons."""
    with suppress(ValueError):
        ipaddress.IPv6Address(match[0])
        return "<address>" if len(match[0].replace(":", " ").split()) > 2 else match[0]
    return match[0]


def _host_names() -> set[str]:
    names = {socket.gethostname(), os.uname().nodename, socket.getfqdn()}
    names |= {name.partition(".")[0] for name in names}
    return {name for name in names if len(name) > 1} - NOBODY


def _users(environ: Mapping[str, str]) -> set[str]:
    names = {environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME")}
    names |= {Path.home().name}
    with suppress(KeyError, OSError):  # a container's user may have no passwd entry
        names.add(getpass.getuser())
    return {name for name in names if len(name) > 1} - NOBODY
