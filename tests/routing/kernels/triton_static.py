"""Compiles the Triton kernels without a GPU and prints, as JSON, what the machine code costs.

    python -m tests.routing.kernels.triton_static          # needs triton

Instructions are those of the cubin, without NOPs, for one token a program. A warp issues each once
at most, so the number is an upper bound of what a token costs in issued warp instructions.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from equipoise.routing.kernels.gpu.bins_kernel import bins_kernel
from equipoise.routing.kernels.gpu.launch import launch_for, rank_constants
from equipoise.routing.kernels.gpu.rank_kernel import rank_kernel

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
KINDS = {
    "scores_ptr": "*fp32", "shift_ptr": "*fp32", "mask_ptr": "*u8", "gates_ptr": "*fp32",
    "values_ptr": "*fp32", "experts_ptr": "*i64", "loads_ptr": "*i64", "num_tokens": "i32",
    "runner_up_ptr": "*i64", "margin_ptr": "*fp32", "scale_ptr": "*fp32", "counts_ptr": "*i32",
    "stride": "i32",
}  # fmt: skip
SHAPES = [(64, 6), (128, 8), (256, 8), (512, 8), (896, 16), (1024, 16)]
ARCHITECTURES = (80, 90, 100)


def compiled(kernel, constants, arch, warps):
    names = kernel.arg_names
    signature = {name: KINDS.get(name, "constexpr") for name in names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if name.endswith("_ptr")
    }
    made = triton.compile(
        ASTSource(kernel, signature, constants, aligned),
        target=GPUTarget("cuda", arch, 32),
        options={"num_warps": warps, "enable_fp_fusion": False},
    )
    return made.asm["cubin"]


def costs(cubin):
    """Instructions, registers and bytes of local memory, which are spills."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        sass = _dump("-sass", file.name)
        usage = _dump("-res-usage", file.name)
    code = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.+?);", sass, re.M)
    registers, stack, local = (
        int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK", "LOCAL")
    )
    return {
        "instructions": sum(not line.startswith("NOP") for line in code),
        "registers": registers,
        "spilled": stack + local,
    }


def _dump(flag, path):
    tool = TOOLS / "cuobjdump"
    done = subprocess.run([str(tool), flag, path], capture_output=True, text=True, check=True)
    return done.stdout


def table():
    rows = []
    for arch in ARCHITECTURES:
        for experts, top_k in SHAPES:
            launch = launch_for(experts)
            shape = {"E": experts, "COLUMNS": triton.next_power_of_2(experts), "MASKED": False}
            rank = compiled(
                rank_kernel,
                {
                    **rank_constants(experts, top_k, top_k + 1),
                    "TOKENS": 1,
                    "SCORE": "none",
                    "SHIFTED": True,
                    "MASKED": False,
                },
                arch,
                launch.warps,
            )
            bins = compiled(
                bins_kernel, {**shape, "SAMPLES": 1, "BINS": 512, "FLIPS": True}, arch, launch.warps
            )
            row = {"arch": arch, "E": experts, "K": top_k, "warps": launch.warps}
            rows.append({**row, "rank": costs(rank), "bins": costs(bins)})
    return rows


if __name__ == "__main__":
    json.dump(table(), sys.stdout, indent=1)
