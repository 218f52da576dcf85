"""Two hosts on one machine: network namespaces joined by a virtual cable, made and removed here."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

CABLE = "eth9"
ADDRESSES = ("10.77.0.1", "10.77.0.2")


class TwoHosts:
    """Host 0 and host 1. They share the file system, as machines with a network folder do."""

    def __init__(self) -> None:
        self.names = tuple(f"equipoise-{os.getpid()}-{host}" for host in (0, 1))

    def __enter__(self) -> "TwoHosts":
        for name in self.names:
            _ip("netns", "add", name)
        one, other = self.names
        pair = ("type", "veth", "peer", "name", CABLE, "netns", other)
        _ip("link", "add", CABLE, "netns", one, *pair)
        for name, address in zip(self.names, ADDRESSES, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", CABLE)
            for device in (CABLE, "lo"):
                _ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host, name in enumerate(self.names):
            self.kill(host)
            _ip("netns", "del", name)

    def start(self, host: int, words: list[str], folder: Path, **more: str) -> subprocess.Popen:
        """Run a command on a host."""
        # gloo would otherwise look its address up by a host name that both share
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": CABLE, "OMP_NUM_THREADS": "1", **more}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *words],
            cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def cut(self) -> None:
        """Pull the cable: nothing arrives any more, and nobody is told."""
        _ip("-n", self.names[1], "link", "set", CABLE, "down")

    def mend(self) -> None:
        _ip("-n", self.names[1], "link", "set", CABLE, "up")

    def kill(self, host: int) -> None:
        """End every process of a host at once, as a power failure does."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.names[host]], capture_output=True, text=True, check=False
        )
        for pid in found.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue


def why_not() -> str | None:
    """Why two hosts cannot be made here, or nothing."""
    if shutil.which("ip") is None:
        return "no `ip`: install iproute2"
    name = f"equipoise-probe-{os.getpid()}"
    probe = subprocess.run(
        ["ip", "netns", "add", name], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        return f"no right to make network namespaces: {probe.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
