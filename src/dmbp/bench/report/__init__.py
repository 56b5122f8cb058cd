"""The results of a plan as tables, plots and files."""
