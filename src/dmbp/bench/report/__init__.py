"""Shows the results of a plan as tables, files and plots.

- `lines`: the mean score of each method on each task, ranked, with the paper's figures;
- `table`: these lines in the paper's layout, as Markdown, LaTeX or CSV;
- `files`: every row as CSV or Parquet, and a plot of curves and costs.
"""
