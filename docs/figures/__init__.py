"""Figures of the documentation, a script for each; `python docs/figures/NAME.py` writes it.

    collage.py        images/collage.png and images/collage-methods.png
    windows.py        images/windows.png
    idea.py           images/idea.png
    background.py     images/background.png
    page.py           images/page.png, in Chromium

`python -m benchmarks.training_maps` draws images/training.png, and
`dmbp bench plot plans/paper-table2-small.toml docs/images/table2-small.png` the curves, and
`dmbp bench plot plans/leaderboard.toml docs/images/leaderboard.png --ranks` the mean ranks.
"""
