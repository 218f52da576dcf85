"""The assignment problem that balancing solves: its loop, its optimum, its expectation. numpy only; never imports torch."""
