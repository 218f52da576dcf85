"""The one style of tables: what is set where, and that a name in brackets is shown as it is."""

from rich.console import Console

from equipoise.results.terminal_table import terminal_table


def lines_of(table, width=80):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_words_stand_left_and_figures_right():
    table = terminal_table(["scheme", "loss", "why"], title="a [b]", left=("why",))
    table.add_row("none", "5.25", "so")
    table.add_row("deepseek", "12.5", "not")
    assert lines_of(table) == [
        "a [b]",
        "scheme   loss why",
        "─────────────────",
        "none     5.25 so",
        "deepseek 12.5 not",
    ]


def test_a_list_has_no_head():
    table = terminal_table((), title="tiny")
    table.add_row("tokens", "300")
    assert lines_of(table) == ["tiny", "tokens  300"]


def test_a_comparison_of_eight_fits_eighty_columns(monkeypatch, capsys):
    from pathlib import Path

    from equipoise.experiments.table import show_comparison
    from equipoise.results.comparison.rows import read_comparison

    monkeypatch.setenv("COLUMNS", "80")
    rows = Path(__file__).parents[2] / "docs" / "results" / "tiny.json"
    show_comparison(read_comparison(rows))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "auxiliary loss 5.3885 0.116 (0.011)" in out
    # no interval breaks between its sign and its figure
    assert not [line for line in out.splitlines() if line.rstrip().endswith("±")]
