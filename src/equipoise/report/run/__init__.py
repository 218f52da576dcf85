"""The page of single runs, finished, stopped or running: words on top, tables of rows, figures."""
