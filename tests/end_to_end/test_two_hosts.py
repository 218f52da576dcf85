"""Trainings and sweeps over two hosts, with the cable pulled and hosts that die."""

import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from pydoc_data.topics import topics

import pytest

from tests.end_to_end.hosts import ADDRESSES, TwoHosts, why_not

MISSING = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
MODEL = {
    "vocab-size": 300, "sequence-length": 16, "hidden-size": 16, "num-heads": 2, "moe-layers": 2,
    "num-experts": 8, "top-k": 2, "expert-size": 8,
}  # fmt: skip
SIZE = [word for name, value in MODEL.items() for word in (f"--model.{name}", str(value))]
FLAGS = ["--data", "text.txt", "--batch-size", "4", "--validation-sequences", "8", *SIZE]
PORT = "29517"
CLOCK = ("seconds", "tokens_per_second")


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    text = "\n\n".join(topics[name] for name in sorted(topics))
    (tmp_path / "text.txt").write_text(text[:100_000], encoding="utf-8")
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with TwoHosts() as made:
        yield made


def train(hosts, folder, *words):
    """The same training on both hosts, one rank each."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    torchrun += ["--nproc-per-node", "1", "--master-addr", ADDRESSES[0], "--master-port", PORT]
    return [
        hosts.start(
            host,
            [*torchrun, "--node-rank", str(host), "-m", "equipoise", "train", *FLAGS, *words],
            folder,
        )
        for host in (0, 1)
    ]


def ended(started, seconds=180):
    """Exit code, output and errors of each."""
    found = [process.communicate(timeout=seconds) for process in started]
    return [(process.returncode, *texts) for process, texts in zip(started, found, strict=True)]


def rows(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if key not in CLOCK} for row in found]


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_checkpoint_of_two_hosts_is_resumed(hosts, tmp_path, parallel):
    same = ["--parallel", parallel, "--checkpoint-every", "3", "--keep-checkpoints", "9"]
    for code, _, errors in ended(train(hosts, tmp_path, *same, "--steps", "6", "--out", "a")):
        assert code == 0, errors
    whole = rows(tmp_path / "a")
    # as after a crash between the third step and the end
    (tmp_path / "a/result.json").unlink()
    (tmp_path / "a/checkpoints/step-00000006").rename(tmp_path / "gone")
    resumed = train(hosts, tmp_path, *same, "--steps", "6", "--out", "a", "--resume")
    for code, _, errors in ended(resumed):
        assert code == 0, errors
    assert rows(tmp_path / "a") == whole
    assert json.loads((tmp_path / "a/result.json").read_text())["ranks"] == 2


def test_a_host_cut_off_ends_both_with_a_reason_and_resumes_to_the_same_digits(hosts, tmp_path):
    same = ["--steps", "120", "--checkpoint-every", "10", "--keep-checkpoints", "20"]
    same += ["--evaluate-every", "0", "--rank-timeout", "20"]
    for code, _, errors in ended(train(hosts, tmp_path, *same, "--out", "unbroken")):
        assert code == 0, errors
    started = train(hosts, tmp_path, *same, "--out", "broken")
    checkpoints = tmp_path / "broken/checkpoints"
    wait_for(lambda: (checkpoints / "step-00000010").exists())
    hosts.cut()
    found = ended(started)
    assert [code != 0 for code, _, _ in found] == [True, True]
    assert any("lost the others" in errors and "--resume" in errors for _, _, errors in found)
    assert not (tmp_path / "broken/result.json").exists()
    hosts.mend()
    for code, _, errors in ended(train(hosts, tmp_path, *same, "--out", "broken", "--resume")):
        assert code == 0, errors
    assert rows(tmp_path / "broken") == rows(tmp_path / "unbroken")


def grid(folder, steps, seeds, **more):
    base = {"preset": "tiny", "data": "text.txt", "steps": steps, "batch_size": 4}
    base |= {"validation_sequences": 8, "evaluate_every": 0, **more}
    base |= {f"model.{name.replace('-', '_')}": value for name, value in MODEL.items()}
    text = "base:\n" + "".join(f"  {name}: {value}\n" for name, value in base.items())
    (folder / "grid.yaml").write_text(f"{text}axes:\n  seed: {seeds}\n")


def sweep(hosts, host, folder, *words):
    command = [sys.executable, "-m", "equipoise", "sweep", "grid.yaml", "--out", "found", "--json"]
    return hosts.start(host, [*command, *words], folder)


def test_two_sweeps_on_two_hosts_share_a_folder(hosts, tmp_path):
    grid(tmp_path, 3, [0, 1, 2, 3])
    found = ended([sweep(hosts, host, tmp_path) for host in (0, 1)])
    for code, output, errors in found:
        assert code == 0, errors
        assert json.loads(output)["unfinished"] == []
    for seed in range(4):
        lines = rows(tmp_path / f"found/trials/seed={seed}")
        # nobody trained what the other had
        assert [row["step"] for row in lines if row["kind"] == "train"] == [1, 2, 3]


def both_have_checkpoints(folder):
    return all(any(folder.glob(f"found/trials/seed={seed}/checkpoints/step-*")) for seed in (0, 1))


@pytest.fixture
def short_folder():
    folder = tempfile.mkdtemp(prefix="eq-")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(hosts, tmp_path, monkeypatch, short_folder):
    """A Ray node on each host, with one CPU, in a folder of its own.

    The folder's name is short, since Ray's sockets are in it; in /tmp/ray they would leave the
    address of a cluster that is gone, which the next ray.init() here would look for.
    """
    pytest.importorskip("ray", reason="no ray: its engine is not tried")
    monkeypatch.setenv("RAY_TMPDIR", short_folder)
    # a token of this cluster alone: nodes that find the user's own in some places and none in
    # others refuse each other
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray = os.path.join(os.path.dirname(sys.executable), "ray")
    same = ["--num-cpus", "1", "--object-store-memory", str(80 * 2**20)]
    head = ["--head", "--port", "6399", "--include-dashboard", "false"]
    for host, words in enumerate((head, ["--address", f"{ADDRESSES[0]}:6399"])):
        command = [ray, "start", *words, "--node-ip-address", ADDRESSES[host], *same]
        (found,) = ended([hosts.start(host, command, tmp_path)])
        assert found[0] == 0, found[2]
    return ["--engine", "ray", "--address", f"{ADDRESSES[0]}:6399"]


def test_a_trial_moves_when_its_node_dies(hosts, cluster, tmp_path):
    grid(tmp_path, 400, [0, 1], checkpoint_every=20)
    started = sweep(hosts, 0, tmp_path, *cluster)
    wait_for(lambda: both_have_checkpoints(tmp_path))
    hosts.kill(1)
    ((code, output, errors),) = ended([started], seconds=400)
    assert code == 0, errors
    found = json.loads(output)
    assert found["failed"] == found["unfinished"] == []
    assert found["rows"][0]["finished"] == 2


def test_a_short_cut_of_the_link_costs_no_trial(hosts, cluster, tmp_path):
    grid(tmp_path, 400, [0, 1], checkpoint_every=20)
    started = sweep(hosts, 0, tmp_path, *cluster)
    wait_for(lambda: both_have_checkpoints(tmp_path))
    hosts.cut()
    time.sleep(3)
    hosts.mend()
    ((code, output, errors),) = ended([started], seconds=400)
    assert code == 0, errors
    assert json.loads(output)["rows"][0]["finished"] == 2
