"""Whether a release could be made of this tree: `make release-check`. Nothing is uploaded.

One version everywhere; a wheel and an sdist, the wheel of the sdist the same; and in a clean
environment the wheel at work, alone and with all its extras.

    python .ci/release_check.py [--torch-index ADDRESS] [--work FOLDER]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = """
import equipoise, torch
balancer = equipoise.balancer("quantile", 16, top_k=2)
for _ in range(5):
    scores = (torch.randn(512, 16) + torch.linspace(0, 2, 16)).softmax(-1)
    routing = balancer.route(scores)
    balancer.update(balancer.tally(scores, routing))
assert "site-packages" in equipoise.__file__, equipoise.__file__
assert equipoise.metrics(routing.loads)["imbalance"] < 0.5
"""


def versions() -> dict[str, str]:
    """Where a version is written, and which."""
    package = (ROOT / "src/equipoise/__init__.py").read_text()
    citation = (ROOT / "CITATION.cff").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    return {
        "pyproject.toml": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
            "version"
        ],
        "src/equipoise/__init__.py": found(r'^__version__ = "(.+)"', package),
        "CITATION.cff": found(r"^version: (.+)$", citation),
        "CHANGELOG.md": found(r"^## (\S+)", changelog),
    }


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, flags=re.MULTILINE)
    return match[1] if match else "none"


def check_versions() -> None:
    """The newest heading of the changelog is this version, so nothing waits under "Unreleased"."""
    written = versions()
    if len(set(written.values())) != 1:
        raise SystemExit(f"the version is not the same everywhere: {written}")
    say(f"version {written['pyproject.toml']}, in all of {', '.join(written)}")


def build(work: Path) -> tuple[Path, Path]:
    run("-m", "hatchling", "build", "-d", str(work / "dist"), cwd=ROOT)
    (wheel,) = (work / "dist").glob("*.whl")
    (sdist,) = (work / "dist").glob("*.tar.gz")
    say(f"built {wheel.name} ({wheel.stat().st_size // 1024} KB) and {sdist.name}")
    return wheel, sdist


def check_sdist(wheel: Path, sdist: Path, work: Path) -> None:
    """The sdist holds all it needs to build the same wheel."""
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "unpacked", filter="data")
    (source,) = (work / "unpacked").iterdir()
    run("-m", "hatchling", "build", "-t", "wheel", "-d", str(work / "again"), cwd=source)
    (again,) = (work / "again").glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        if contents(one) != contents(other):
            raise SystemExit("the wheel built from the sdist differs from the wheel")
    say("the sdist builds the same wheel")


def contents(archive: zipfile.ZipFile) -> dict[str, int]:
    return {each.filename: each.CRC for each in archive.infolist()}


def check_installed(wheel: Path, work: Path, torch_index: str) -> None:
    """In a clean environment: the core alone, then every extra."""
    run("-m", "venv", str(work / "clean"))
    python = str(work / "clean/bin/python")
    index = ["--index-url", torch_index] if torch_index else []
    install(python, *index, "torch")
    install(python, str(wheel))
    run("-c", CORE, python=python, cwd=work)
    refused = run(*EQUIPOISE, "demo", python=python, cwd=work, code=2)
    if "pip install 'equipoise[report]'" not in refused:
        raise SystemExit(f"without its extra, demo does not name it: {refused}")
    say("the core works alone, and a verb without its extra names it")
    install(python, f"{wheel}[all]")
    for command in SMOKE:
        run(*EQUIPOISE, *command.split(), python=python, cwd=work)
    say(f"with all extras: {'; '.join(SMOKE)}")


EQUIPOISE = ("-m", "equipoise")
SMALL = "--model.moe-layers 1 --model.hidden-size 32 --model.num-heads 2 --model.num-experts 8"
SMOKE = (
    "--help",
    "demo --balancers none quantile --steps 5 --tokens 512 --experts 8 --top-k 2 --json",
    f"train --preset tiny --steps 3 {SMALL} --out run",
    "report run --out run.html",
    "plan deepseekmoe-1b",
)


def install(python: str, *what: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    run("-m", "pip", "install", *options, *constraints, *what, python=python)


def run(
    *arguments: str, python: str = sys.executable, cwd: Path | None = None, code: int = 0
) -> str:
    """A command of Python's, which must end with this code; what it said."""
    answer = subprocess.run(
        [python, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    if answer.returncode != code:
        said = (answer.stdout + answer.stderr)[-4000:]
        raise SystemExit(f"python {' '.join(arguments)} ended with {answer.returncode}:\n{said}")
    return answer.stdout + answer.stderr


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-index", default="")
    parser.add_argument("--work", type=Path, help="a folder to keep; by default a temporary one")
    flags = parser.parse_args()
    check_versions()
    with tempfile.TemporaryDirectory() as temporary:
        work = flags.work or Path(temporary)
        wheel, sdist = build(work)
        check_sdist(wheel, sdist, work)
        check_installed(wheel, work, flags.torch_index)


if __name__ == "__main__":
    main()
