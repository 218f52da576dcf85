"""Clusters by name and by figures; groups of devices that share experts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.costs.cluster import Cluster, checked_group, find_cluster, usual_group
from equipoise.costs.devices import GPU, GPUS

FIGURES = "teraflops: 989\ngigabytes: 80\nlink: 450\nnode: 8\nnetwork: 50\ndevices: 128\n"


def test_a_name_is_a_kind_and_a_number():
    made = find_cluster("GB200-64")
    assert (made.gpu, made.devices, made.name) == (GPUS["GB200"], 64, "gb200-64")


def test_units_by_hand():
    made = find_cluster("h100-8")
    assert made.flops == 989e12 * 0.4
    assert made.link_bytes == 337.5e9
    assert made.network_bytes == 45e9


def test_a_file_of_figures(tmp_path):
    (tmp_path / "mine.yaml").write_text(FIGURES + "compute_share: 0.5\n")
    made = find_cluster(str(tmp_path / "mine.yaml"))
    assert made == Cluster("mine", GPU(989, 80, 450, 8, 50), 128, compute_share=0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FIGURES + "linc: 4", "has 'linc' .did you mean 'link'"),
        ("teraflops: 989", "lacks gigabytes, link, node, network, devices"),
        (FIGURES.replace("450", "fast"), "link must be a number, not 'fast'"),
        (FIGURES.replace("450", "0"), "link must be above 0"),
        (FIGURES + "link_share: 1.5", "link_share is a share of a peak"),
    ],
)
def test_wrong_files_are_explained(text, message, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        find_cluster(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize("name", ["gb200", "gb-64", "h100-x", "h100-0", ""])
def test_wrong_names_are_explained(name):
    with pytest.raises(ValueError, match=r"no cluster|at least 1 device"):
        find_cluster(name)


@given(st.integers(1, 4096), st.integers(1, 1024))
def test_the_usual_group_divides_both(devices, experts):
    size = usual_group(devices, experts)
    assert devices % size == experts % size == 0
    assert size <= 64
    assert not [n for n in range(size + 1, 65) if devices % n == experts % n == 0]


def test_groups_that_do_not_divide_are_refused():
    assert checked_group(8, 64, 256) == 8
    with pytest.raises(ValueError, match="do not divide into groups of 48: the usual size here is"):
        checked_group(48, 64, 256)


def test_every_gpu_has_figures():
    assert all(gpu.teraflops > 100 and gpu.gigabytes >= 24 for gpu in GPUS.values())
    assert all(gpu.link >= gpu.network > 0 and gpu.node >= 8 for gpu in GPUS.values())
