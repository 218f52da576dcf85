"""The proof in miniature: the real Trainer on collapsed experts, without and with us."""

import re
import runpy
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "mend_collapsed_experts.py"
LINE = re.compile(
    r"(\w+) +(\w+) +bias moved ([\d.]+)  max violation ([\d.]+) -> ([\d.]+)  loss ([\d.]+)"
)


def test_collapsed_experts_are_mended(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "12"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = {
        (family, rule): tuple(map(float, rest))
        for family, rule, *rest in LINE.findall(capsys.readouterr().out)
    }
    assert len(found) == 4
    for family in ("DeepseekV3", "Glm4Moe"):
        still, (moved, first, last, loss) = found[family, "none"], found[family, "curvature"]
        assert still[0] == 0.0
        assert still[2] >= still[1]  # left alone, it grows or stays
        assert moved > 0
        assert last * 5 <= first == still[1]
        assert loss <= still[3] + 0.01
