"""The repository for the hub of kernels: loaded by the `kernels` package, as a user's would be."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.fetching import fetch, run_python

ROOT = Path(__file__).parents[3]
LOADED = """
import os, sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
import torch
from kernels import get_local_kernel
from kernels._rust import Build

from equipoise.routing.kernels.reference import rank_by_sorting

folder = Path(sys.argv[1])
Build.open(folder)
kernel = get_local_kernel(folder)
assert kernel.__file__.startswith(str(folder)), kernel.__file__
scores, shift = torch.randn(9, 60), torch.randn(60) * 0.1
ours = kernel.rank(scores, shift, None, 4, 5)
assert all(map(torch.equal, ours, rank_by_sorting(scores, shift, None, 4, 5)))
gates, *_ = kernel.choose(scores, shift, None, "sigmoid", 4, 5)
assert gates.shape == (9, 4)
"""


def write(folder):
    script = ROOT / ".ci" / "kernel_repository.py"
    return subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False
    )


def test_the_layout_holds_the_kernels_of_this_tree(tmp_path):
    folder = tmp_path / "hub"
    assert write(folder).returncode == 0
    built, source = folder / "build/torch-universal", folder / "torch-ext/equipoise_routing"
    for file in source.iterdir():
        assert (built / file.name).read_text() == file.read_text()
        assert "from equipoise" not in file.read_text()
    again = write(folder)
    assert again.returncode == 1
    assert "is not empty" in again.stderr


@pytest.mark.slow
def test_the_kernels_package_loads_it(tmp_path):
    folder = tmp_path / "hub"
    write(folder)
    target = fetch(tmp_path, "kernels==0.17.2", "tomlkit", "triton==3.9.0")
    run_python(target, "-c", LOADED, folder)
