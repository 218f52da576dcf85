"""The comparison as a person meets it: in processes of its own, then a page."""

import json
import os
import subprocess
import sys
from pydoc_data.topics import topics


def test_compare_makes_a_table_and_a_page(tmp_path):
    (tmp_path / "manual.txt").write_text("\n".join(topics.values()))

    def compare(*flags):
        words = [
            "compare",
            "--steps",
            "2",
            "--schemes",
            "none",
            "quantile",
            "--data",
            "manual.txt",
            "--out",
            "results",
        ]
        return subprocess.run(
            [sys.executable, "-m", "equipoise", *words, *flags],
            cwd=tmp_path,
            env={
                **os.environ,
                "EQUIPOISE_CACHE": str(tmp_path / "cache"),
                "OMP_NUM_THREADS": "1",
                "COLUMNS": "80",
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    answer = compare()
    assert answer.returncode == 0, answer.stderr
    assert "no balancing" in answer.stdout
    assert "…" not in answer.stdout  # nothing is cut off in a narrow terminal
    assert (tmp_path / "results" / "report.html").exists()
    trained = (tmp_path / "results/runs/none-0/result.json").stat().st_mtime_ns
    rows = json.loads(compare("--json").stdout)
    assert [row["name"] for row in rows] == ["none", "quantile"]
    assert (tmp_path / "results/runs/none-0/result.json").stat().st_mtime_ns == trained
