"""What a comparison found: its file, its rows, paired differences, and what can be said of them.

The rule for what is here and what is in equipoise.report: numbers, differences and the kept file
are here; sentences and tables only where the terminal needs them too (answer.py, tables.py,
observations.py). What a page alone shows is in equipoise.report.comparison.
"""
