"""What real trackers keep of it: TensorBoard's event file, W&B's offline run, trackio's database.

None is among our dependencies. A slow test fetches each into a folder of its own, and runs in a
process that looks there last, so that all it has already stays as it is.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST = """
import io, json, sys
import numpy as np, torch
import equipoise
from equipoise.drawing.heat_map import empty_heat_map
from equipoise.drawing.palette import load_colors, load_palette
from equipoise.integrations.tracking_callback import TrackingCallback
from PIL import Image
from tests.attach.test_trainer import trainer
from tests.attach.tools import tiny

LOADS = {f"layers.{n}": torch.randint(0, 50, (16,), generator=torch.Generator().manual_seed(n))
         for n in range(3)}

def check_picture(picture):
    "The colour in the middle of every cell is that of its load."
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
    relative = {name: 16 * each.numpy() / each.sum().item() for name, each in LOADS.items()}
    _, place = empty_heat_map(relative)
    for row, each in enumerate(relative.values()):
        y = place.y + row * place.cell_height + place.cell_height // 2
        x = place.x + np.arange(16) * place.cell_width + place.cell_width // 2
        assert (pixels[y, x] == load_palette()[load_colors(each)]).all()

def log_steps(tracker):
    return [equipoise.log_balance(tracker, LOADS, step, top_k=2, image_every=2) for step in (1, 2)]

def train(report_to, folder, steps=4):
    model = tiny("mixtral")
    balancing = equipoise.balance(model, "deepseek", update_rate=0.01)
    run = trainer(model, folder, balancing, report_to=[report_to])
    run.add_callback(TrackingCallback(balancing, image_every=2))
    run.train()
    return [entry["balance/imbalance"] for entry in run.state.log_history if "loss" in entry]
"""
TENSORBOARD = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

def read(folder):
    return EventAccumulator(folder, size_guidance={"images": 0, "scalars": 0}).Reload()

with SummaryWriter("own") as writer:
    sent = log_steps(writer)
events = read("own")
for name, value in sent[0].items():
    kept = [(each.step, each.value) for each in events.Scalars(name)]
    assert kept == [(1, np.float32(value)), (2, np.float32(sent[1][name]))], (name, kept)
(picture,) = events.Images("balance/loads")
assert picture.step == 2
check_picture(picture.encoded_image_string)
assert set(events.Tags()["scalars"]) == set(sent[0])

levels = train("tensorboard", "trained")
from pathlib import Path
(folder,) = {str(path.parent) for path in Path().rglob("events.out*") if "own" not in path.parts}
events = read(folder)
kept = [each.value for each in events.Scalars("train/balance/imbalance")]
assert kept == [np.float32(level) for level in levels]
assert [each.step for each in events.Images("train/balance/loads")] == [2, 4]

from equipoise.training import train as train_ours
from tests.training.micro import small_config
Path("texts").mkdir()
Path("texts/a.txt").write_text("".join(f"line {n} of {n * n}\\n" for n in range(3000)))
result = train_ours(small_config("texts", out="run", steps=3, log_to="tensorboard:events"))
events = read("events")
kept = [each.value for each in events.Scalars("balance/imbalance")]
rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
assert kept == [np.float32(row["imbalance"]) for row in rows if row["kind"] == "train"]
assert [each.step for each in events.Images("balance/loads")] == [1, 3]
assert events.Scalars("validation/imbalance")[-1].value == np.float32(result["imbalance"])
"""
WANDB = """
import os
from pathlib import Path
os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": os.getcwd()}
import wandb

with wandb.init(project="own", dir=".") as run:
    sent = log_steps(run)
    assert run.step == 2, run.step
    assert run.summary["balance/imbalance"] == sent[1]["balance/imbalance"], run.summary
    kept = {name for name in run.summary.keys() if not name.startswith("_")}
    assert kept - {"balance/loads"} == set(sent[0]), kept
    (file,) = Path(run.dir).rglob("*.png")
    # its name has the step of the call before: wandb counts on after it has named the file
    assert file.parent.name == "balance" and file.name.startswith("loads_"), file
    check_picture(file.read_bytes())

levels = train("wandb", "trained")
assert wandb.run.summary["train/balance/imbalance"] == levels[-1]
assert len(list(Path(wandb.run.dir).rglob("*.png"))) == 2
wandb.finish()
"""
TRACKIO = """
import os
from pathlib import Path
os.environ["TRACKIO_DIR"] = os.getcwd()
import trackio
from trackio.sqlite_storage import SQLiteStorage

def logs_of(project):
    (name,) = SQLiteStorage.get_runs(project)
    return SQLiteStorage.get_logs(project, name)

run = trackio.init(project="own", embed=False)
sent = log_steps(run)
trackio.finish()
first, second = logs_of("own")
for name, value in sent[0].items():
    assert first[name] == value and second[name] == sent[1][name], name
assert (first["step"], second["step"]) == (1, 2)
assert "balance/loads" not in first and second["balance/loads"]["_type"] == "trackio.image"
(file,) = Path().rglob("*.png")
check_picture(file.read_bytes())

levels = train("trackio", "trained")
(project,) = {each for each in SQLiteStorage.get_projects()} - {"own"}
logged = logs_of(project)
kept = [each["train/balance/imbalance"] for each in logged if "train/balance/imbalance" in each]
assert kept == levels
pictures = [each for each in logged if "train/balance/loads" in each]
assert [each["train/global_step"] for each in pictures] == [2, 4]
"""
CODE = {"tensorboard": TENSORBOARD, "wandb": WANDB, "trackio": TRACKIO}


def fetch(library, folder):
    """The library in a folder; nothing to fetch where it is installed."""
    if find_spec(library) is not None:
        return
    pins = str(ROOT / "constraints.txt")
    words = ["install", "--quiet", "-c", pins, "--target", str(folder), library]
    # wandb draws its pictures with it
    words += ["pillow"] if library == "wandb" else []
    answer = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    if answer.returncode:
        pytest.skip(f"{library} cannot be fetched: {answer.stderr.strip().splitlines()[-1]}")


@pytest.mark.slow
@pytest.mark.parametrize("library", CODE)
def test_a_real_tracker_keeps_what_it_is_sent(library, tmp_path, monkeypatch):
    fetch(library, tmp_path / "packages")
    (tmp_path / "work").mkdir()
    paths = [str(ROOT), *sys.path, str(tmp_path / "packages")]
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in paths if path))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = FIRST + CODE[library] + "print('kept')\n"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "work", capture_output=True, text=True
    )
    assert answer.stdout.splitlines()[-1:] == ["kept"], answer.stderr
