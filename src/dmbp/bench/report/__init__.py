"""Shows the results of a plan.

- `lines`: the mean score of each method on each task, ranked, beside the paper's;
- `table`: these lines in the paper's layout, as text, LaTeX or CSV;
- `files`: every row as CSV or Parquet, and a plot of curves and costs.
"""
