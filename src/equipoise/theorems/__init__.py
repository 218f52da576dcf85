"""The paper's numbered statements as checks that run: each takes a problem, a run or a trace and gives a Verdict."""
