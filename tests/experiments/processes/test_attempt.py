"""What a training is started with; tests/experiments/sweep has attempts that fail or are killed."""

import sys
from pathlib import Path

from equipoise.experiments.processes import attempt, job


def test_one_process_measures_and_several_run_under_torchrun():
    alone = job.training_command(Path("a.yaml"), job.AttemptOptions(measure=True))
    assert alone == [
        sys.executable,
        *["-m", "equipoise", "train", "--config", "a.yaml", "--measure"],
    ]
    ranks = job.training_command(Path("a.yaml"), job.AttemptOptions(processes=2))
    assert "torch.distributed.run" in ranks
    assert "--nproc-per-node=2" in ranks


def test_a_trial_is_no_part_of_our_torchrun():
    threads = {"OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    assert attempt.training_environment({"RANK": "3", "HOME": "/"}, 2) == {"HOME": "/", **threads}


def test_what_the_user_says_of_threads_stands():
    asked = {"OMP_NUM_THREADS": "3", "NUMBA_NUM_THREADS": "1"}
    assert attempt.training_environment(asked, 2) == asked
