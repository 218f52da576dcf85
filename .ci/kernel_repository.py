"""The layout of a repository for the hub of kernels, from the Triton kernels of this tree.

    python .ci/kernel_repository.py FOLDER

    FOLDER/build.toml, torch-ext/equipoise_routing/    what kernel-builder builds from
    FOLDER/build/torch-universal/                      what the `kernels` package loads
    FOLDER/README.md

The kernels are pure Python, so that both hold the same files. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "src/equipoise/routing/kernels/gpu"
NAME, REPOSITORY, VERSION = "equipoise-routing", "equipoise/equipoise-routing", 1

INIT = '''"""Top-K of scores + shift with loads, gates from logits, and histograms of distances.

    rank(scores, shift, mask, top_k, wanted)               values, experts, loads
    choose(logits, shift, mask, score, top_k, wanted)      gates, values, experts, loads
    bins(...)                                              (experts, bins + 2)

Of equal shifted scores the lowest expert comes first. No gradients: equipoise has them.
"""

from .launch import bin_on_gpu as bins
from .launch import choose_on_gpu as choose
from .launch import rank_on_gpu as rank

__all__ = ["bins", "choose", "rank"]
'''

README = """---
license: apache-2.0
tags: [kernels, mixture-of-experts]
---
# Routing for sparse Mixture-of-Experts

Triton kernels of equipoise {release}: the best K experts of every token by score + shift, in order,
with the loads; the same from logits with the gates; histograms of distances to the choice.
They were compiled for sm_80, sm_90 and sm_100, and run in Triton's interpreter.
**No GPU has run them yet.**
"""


def write_repository(folder: Path) -> None:
    """Write the whole layout into an empty or new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty: name another folder")
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (folder / "README.md").write_text(README.format(release=release))
    (folder / "build.toml").write_text(
        f'[general]\nname = "{NAME}"\nversion = {VERSION}\nlicense = "apache-2.0"\n'
        f'backends = ["cuda"]\n\n[general.hub]\nrepo-id = "{REPOSITORY}"\n\n[torch-noarch]\n'
    )
    _write_package(folder / "torch-ext" / NAME.replace("-", "_"))
    built = folder / "build" / "torch-universal"
    _write_package(built)
    about = {"name": NAME, "id": f"{NAME.replace('-', '_')}_{VERSION}", "version": VERSION}
    about |= {"license": "apache-2.0", "python-depends": [], "backend": {"type": "cuda"}}
    (built / "metadata.json").write_text(json.dumps(about, indent=1) + "\n")


def _write_package(folder: Path) -> None:
    """The kernels, importable under any name: they know each other by relative imports."""
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(INIT)
    for name in ("rank_kernel", "bins_kernel", "launch"):
        source = (KERNELS / f"{name}.py").read_text()
        relative = source.replace("from equipoise.routing.kernels.gpu.", "from .")
        if "equipoise." in relative.replace("operators.py", ""):
            raise SystemExit(f"{name}.py imports more of equipoise than the hub would have")
        (folder / f"{name}.py").write_text(relative)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    write_repository(parser.parse_args().folder)
