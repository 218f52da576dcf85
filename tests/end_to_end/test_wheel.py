"""The wheel builds, and works in an environment that has only its core dependencies."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import equipoise, torch
balancer = equipoise.balancer("quantile", 16, top_k=2)
for _ in range(5):
    scores = (torch.randn(512, 16) + torch.linspace(0, 2, 16)).softmax(-1)
    routing = equipoise.route(scores, 2, choose_by=balancer.adjust(scores))
    balancer.update(balancer.tally(scores, routing))
print(equipoise.__file__, float(equipoise.metrics(routing.loads)["imbalance"]) < 0.5)
"""


def run(*command, **options):
    answer = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.mark.slow
def test_wheel_works_in_a_clean_environment(tmp_path):
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
    )
    (wheel,) = tmp_path.glob("equipoise-*.whl")
    run(sys.executable, "-m", "venv", str(tmp_path / "clean"))
    python = str(tmp_path / "clean/bin/python")
    install = (
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--only-binary",
        ":all:",
        "-c",
        str(ROOT / "constraints.txt"),
    )
    run(*install, "torch")
    run(*install, str(wheel))
    where, balanced = run(python, "-c", PROGRAM, cwd=tmp_path).split()
    assert "site-packages" in where
    assert balanced == "True"
    answer = subprocess.run(
        [tmp_path / "clean/bin/equipoise", "demo"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert "pip install 'equipoise[report]'" in answer.stderr
