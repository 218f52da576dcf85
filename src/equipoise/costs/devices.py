"""devices: what each kind of GPU has, as its maker states it.

Bandwidths are in one direction, per GPU: makers state the sum of both.
"""

from __future__ import annotations

from typing import NamedTuple


class GPU(NamedTuple):
    """What a GPU has."""

    teraflops: float
    """dense bfloat16, as its maker states it"""
    gigabytes: float
    link: float
    """GB/s to the GPUs of its own node"""
    node: int
    """GPUs of a node: those that `link` connects"""
    network: float
    """GB/s to GPUs of other nodes"""


GPUS = {
    # NVIDIA's H100 SXM datasheet: NVLink 900 GB/s both ways; DGX H100: a 400 Gb/s adapter a GPU
    "H100": GPU(989, 80, link=450, node=8, network=50),
    # arXiv:2412.19437, section 3.1, and arXiv:2505.09343, table 2: NVLink cut to 400 GB/s both ways
    "H800": GPU(989, 80, link=200, node=8, network=50),
    # NVIDIA's H200 datasheet: an H100 with more memory
    "H200": GPU(989, 141, link=450, node=8, network=50),
    # NVIDIA's DGX B200 datasheet: NVLink 1.8 TB/s both ways, 400 Gb/s adapters
    "B200": GPU(2250, 180, link=900, node=8, network=50),
    # NVIDIA's GB200 NVL72 page: 180 PFLOP/s of dense bfloat16 and 13.4 TB in a rack of 72, which is
    # one NVLink domain
    "GB200": GPU(2500, 186, link=900, node=72, network=50),
    # NVIDIA's A100 80GB and DGX A100 datasheets: NVLink 600 GB/s both ways, 200 Gb/s adapters
    "A100": GPU(312, 80, link=300, node=8, network=25),
    # NVIDIA's L40S datasheet: PCIe 4.0 x16, no NVLink; an adapter of 200 Gb/s is assumed
    "L40S": GPU(362, 48, link=32, node=8, network=25),
    # AMD's MI300X datasheet: seven links of 128 GB/s both ways; 400 Gb/s adapters
    "MI300X": GPU(1307, 192, link=448, node=8, network=50),
    # NVIDIA's Ada whitepaper: PCIe 4.0 x16; 100 Gb/s Ethernet is assumed
    "RTX4090": GPU(165, 24, link=32, node=8, network=12.5),
}
