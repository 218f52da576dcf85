"""Following a run while it is written: each file is read from where the last look ended.

    step_bins          a bounded summary of any number of steps
    metrics_follower   metrics.jsonl: losses and imbalances
    layer_follower     one layer of a trace: loads and shifts of as many steps as a screen shows
    trace_follower     all layers of a trace
    run_state          whether a training runs, has stopped, has finished
    run_follower       a run's folder: all of these, as tables of rows
    find_runs          which runs the folders that a user names hold

Nothing here writes, and nothing is an error that a run in progress may cause: a line that is not
complete yet, a folder that is not there yet or no longer, files that are replaced.
"""
