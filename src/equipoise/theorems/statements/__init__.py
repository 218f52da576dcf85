"""The paper's statements, a file for each group."""
