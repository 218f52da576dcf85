"""cluster: so many devices of a kind, and which shares of their peaks are reached.

find_cluster("gb200-64")
find_cluster("mine.yaml")
Cluster("mine", GPU(989, 80, link=450, node=8, network=50), devices=128)
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from pathlib import Path

from equipoise.costs.devices import GPU, GPUS
from equipoise.storage.settings_files import read_settings
from equipoise.storage.suggestions import did_you_mean

COMPUTE_SHARE = 0.4
"""of the peak, reached while computing. Llama 3 405B reports 38 to 43% on 16,384 H100 (arXiv:
2407.21783, table 4), where little but computing takes time.
"""
LINK_SHARE = 0.75
"""of a node's links. DeepEP's README has 153 to 158 GB/s of the H800's 200 in a node."""
NETWORK_SHARE = 0.9
"""of the network. DeepEP's README has 43 to 47 of 50 GB/s for groups of 16 to 64."""
MOST_USUAL_GROUP = 64
"""devices that share the experts unless told otherwise: DeepSeek-V3 (arXiv:2412.19437, 3.2)"""


@dataclass(frozen=True)
class Cluster:
    """Devices, and how well they are used."""

    name: str
    gpu: GPU
    devices: int
    compute_share: float = COMPUTE_SHARE
    link_share: float = LINK_SHARE
    network_share: float = NETWORK_SHARE

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ValueError(f"a cluster has at least 1 device, not {self.devices}")
        if self.gpu.node < 1:
            raise ValueError(f"a node has at least 1 device, not {self.gpu.node}")
        for name in ("compute_share", "link_share", "network_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(
                    f"{name} is a share of a peak, between 0 and 1, not {getattr(self, name)}"
                )
        for name in ("teraflops", "link", "network"):
            if not 0 < getattr(self.gpu, name) < math.inf:
                raise ValueError(f"{name} must be above 0, not {getattr(self.gpu, name)}")

    @property
    def flops(self) -> float:
        """FLOP/s that a device reaches."""
        return self.gpu.teraflops * 1e12 * self.compute_share

    @property
    def link_bytes(self) -> float:
        """Bytes a second that a device reaches within its node."""
        return self.gpu.link * 1e9 * self.link_share

    @property
    def network_bytes(self) -> float:
        """Bytes a second that a device reaches between nodes."""
        return self.gpu.network * 1e9 * self.network_share


def find_cluster(name: str) -> Cluster:
    """KIND-NUMBER, such as gb200-64 or H800-2048; or a YAML or TOML file of figures."""
    if Path(name).suffix in (".yaml", ".yml", ".toml"):
        return _read_cluster(Path(name))
    found = re.fullmatch(r"([A-Za-z0-9]+)-(\d+)", name)
    kinds = {kind.lower(): kind for kind in GPUS}
    if not found or found[1].lower() not in kinds:
        near = did_you_mean(name.rpartition("-")[0].lower(), kinds) if found else ""
        raise ValueError(
            f"no cluster {name!r}{near}: it is a kind and a number, such as gb200-64, or a .yaml "
            f"file of figures. Kinds: {', '.join(kinds)}"
        )
    return Cluster(name.lower(), GPUS[kinds[found[1].lower()]], int(found[2]))


def _read_cluster(path: Path) -> Cluster:
    """A file with the fields of a GPU and of a Cluster, in one list."""
    given = read_settings(path)
    shares = [each.name for each in fields(Cluster) if each.name.endswith("_share")]
    known = [*GPU._fields, "devices", *shares]
    for name in given:
        if name not in known:
            raise ValueError(
                f"{path} has {name!r}{did_you_mean(name, known)}: a cluster has {', '.join(known)}"
            )
    needed = [*GPU._fields, "devices"]
    if missing := [name for name in needed if name not in given]:
        raise ValueError(f"{path} lacks {', '.join(missing)}: a cluster has {', '.join(known)}")
    if wrong := [name for name, value in given.items() if not isinstance(value, int | float)]:
        raise ValueError(f"{path}: {wrong[0]} must be a number, not {given[wrong[0]]!r}")
    gpu = GPU(**{name: given[name] for name in GPU._fields})
    return Cluster(
        path.stem, gpu, given["devices"], **{name: given[name] for name in shares if name in given}
    )


def usual_group(devices: int, num_experts: int) -> int:
    """How many devices share the experts: the most, up to 64, that divide both numbers."""
    both = math.gcd(devices, num_experts)
    return max(size for size in range(1, min(both, MOST_USUAL_GROUP) + 1) if both % size == 0)


def checked_group(group: int | None, devices: int, num_experts: int) -> int:
    """The size of an expert-parallel group, or the usual one; refused where it does not divide."""
    if group is None:
        return usual_group(devices, num_experts)
    if group < 1 or devices % group or num_experts % group:
        raise ValueError(
            f"{num_experts} experts and {devices} devices do not divide into groups of {group}: "
            f"the usual size here is {usual_group(devices, num_experts)}"
        )
    return group
