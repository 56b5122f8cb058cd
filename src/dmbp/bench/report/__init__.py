"""Results of a plan as tables, plots and files."""
