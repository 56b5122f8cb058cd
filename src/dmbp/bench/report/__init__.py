"""Shows the results of a plan as tables, files and plots.

- `lines`: the mean score of each method on each task, ranked, with the paper's figures;
- `table`: these lines in the paper's layout, as Markdown, LaTeX or CSV;
- `ranks`: mean ranks of methods, with Friedman's and Nemenyi's tests, as Markdown or JSON;
- `files`: every row as CSV or Parquet, and a plot of curves and costs.
"""
