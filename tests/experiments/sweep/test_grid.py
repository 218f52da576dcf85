"""Grids: the paper's arithmetic, values as the config has them, and errors that say what to do."""

import pytest

from equipoise.experiments.sweep.grid import read_grid, trial_name


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "grid.yaml").write_text(text)
        return tmp_path / "grid.yaml"

    return write


def test_the_papers_search_is_216_trainings(tmp_path):
    trials = read_grid("paper").trials(tmp_path)
    assert len(trials) == 4 * 6 * 3 * 3 == 216
    for key, values in {
        "balancer": {"deepseek", "inverse", "inverse_sqrt", "aux"},
        "update_rate": {1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0},
        "learning_rate": {1e-5, 1e-4, 1e-3},
        "weight_decay": {0.01, 0.1, 0.001},
    }.items():
        assert {trial.settings[key] for trial in trials} == values
        assert {getattr(trial.job.config, key) for trial in trials} == values
    assert {trial.job.config.preset for trial in trials} == {"deepseekmoe-1b"}
    assert len({trial.job.config.out for trial in trials}) == 216


def test_sizes_of_the_model_may_vary(written, tmp_path):
    grid = read_grid(
        written("base: {model: {top_k: 1}}\naxes: {model.num_experts: [8, 32], seed: [0, 1]}")
    )
    sizes = [
        (t.job.config.model.num_experts, t.job.config.model.top_k, t.job.config.seed)
        for t in grid.trials(tmp_path)
    ]
    assert sizes == [(8, 1, 0), (8, 1, 1), (32, 1, 0), (32, 1, 1)]


def test_blocks_add_up(written, tmp_path):
    grid = read_grid(
        written(
            "axes:\n- {balancer: [deepseek], update_rate: [1e-3, 1]}\n- {balancer: [none, "
            "quantile]}"
        )
    )
    assert [trial.name for trial in grid.trials(tmp_path)] == [
        "deepseek_u=0.001",
        "deepseek_u=1",
        "none",
        "quantile",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axes: {learning_rat: [1e-3]}", "no setting 'learning_rat' .did you mean 'learning_rate'"),
        (
            "axes: {model.num_expert: [8]}",
            r"no setting 'model.num_expert' .did you mean 'num_experts'",
        ),
        ("base: {steps: 1}\naxis: {seed: [0]}", "no grid: it needs a section `axes:`"),
        ("base: {}\naxes: {seed: [0]}\nbases: {}", "no section 'bases' .did you mean 'base'"),
        ("axes: {}", "`axes:` is empty"),
        ("", "no grid: it needs a section `axes:`"),
        ("axes: {seed: []}", "seed needs a list of values"),
        ("axes: {seed: 3}", r"seed needs a list of values, such as \[3\], not 3"),
        ("base: {seed: 0}\naxes: {seed: [0, 1]}", "'seed' stands in `base` and in `axes`"),
        ("base: {out: here}\naxes: {seed: [0, 1]}", "'out' is set by the sweep"),
        ("axes: {seed: [0, 0]}", "holds seed=0 twice"),
        ("axes: {balancer: [none], update_rate: [1]}", "update_rate"),
        ("axes: {learning_rate: [fast]}", "learning_rate must be float, not 'fast'"),
        ("axes: [1, 2", "is not YAML"),
        ("axes: [1, 2]", "`axes:` must hold lines of the form 'setting: value', not 1"),
        ("base: 7\naxes: {seed: [0]}", "`base:` must hold lines"),
    ],
)
def test_mistakes_are_reported(written, tmp_path, text, message):
    with pytest.raises((ValueError, TypeError), match=message):
        read_grid(written(text)).trials(tmp_path)


def test_files_that_are_no_grids_are_reported(tmp_path):
    with pytest.raises(
        ValueError, match="neither a file, nor one of the built-in ones, paper, paper-tiny, demo"
    ):
        read_grid(tmp_path / "nowhere.yaml")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(ValueError, match="it is no text"):
        read_grid(tmp_path / "picture.png")


def test_names_are_safe_and_distinct():
    names = {
        trial_name({"data": data}) for data in ("../a", "--/a", "x" * 300, "x" * 301, ".hidden")
    }
    assert len(names) == 5
    assert all("/" not in name and len(name) < 120 and not name.startswith(".") for name in names)
    assert trial_name({"learning_rate": 0.1 + 0.2}) != trial_name({"learning_rate": 0.3})
