"""access: who may read what `equipoise watch` serves.

On this machine alone (loopback) no token is needed unless one is set; any other address needs one.
A page of somebody else's, open in the same browser, is kept out by the Host header: a name that was
pointed at this machine (DNS rebinding) is none of ours. An address in numbers cannot be pointed
elsewhere, so it is always one of ours.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
from dataclasses import dataclass

TOKEN_VARIABLE = "EQUIPOISE_WATCH_TOKEN"
LEAST_TOKEN = 16
"""letters: shorter ones can be guessed"""
LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain"})


@dataclass(frozen=True)
class Access:
    """The names a request may address us by, and the token it needs; None: no token."""

    names: frozenset[str]
    token: str | None
    local_only: bool

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this server. Its port may be any: a tunnel has its own."""
        name = host_without_port(header)
        if name in self.names:
            return True
        address = parse_address(name)
        return address is not None and (address.is_loopback or not self.local_only)

    def accepts_token(self, given: str | None) -> bool:
        """In a time that does not depend on how much of it is right."""
        if self.token is None:
            return True
        return hmac.compare_digest((given or "").encode(), self.token.encode())


def make_access(host: str, token: str | None) -> Access:
    """The access of a server at this address.

    Args:
        host: the address or name to bind to.
        token: what readers must show; by default the environment's EQUIPOISE_WATCH_TOKEN.

    Raises:
        ValueError: for an address beyond this machine without a token, or a token that is short.
    """
    token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
    local = is_loopback(host)
    if token is None and not local:
        raise ValueError(
            f"{host} can be reached from other machines, and needs a token: pass --token or set "
            f"{TOKEN_VARIABLE}, or leave --host out and use a tunnel (ssh -L)"
        )
    if token is not None and len(token) < LEAST_TOKEN:
        raise ValueError(
            f"the token has {len(token)} letters and could be guessed: take at least {LEAST_TOKEN}"
        )
    names = set(LOOPBACK_NAMES)
    if not local:
        names |= {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
    return Access(frozenset(names), token, local)


def is_loopback(host: str) -> bool:
    address = parse_address(host)
    return host.lower() in LOOPBACK_NAMES if address is None else address.is_loopback


def parse_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address in numbers; None for a name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def host_without_port(header: str) -> str:
    """ "[::1]:8000" -> "::1", "Localhost:8000" -> "localhost"."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()
