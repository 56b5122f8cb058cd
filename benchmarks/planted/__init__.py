"""Images made by code, in which it is known what speaks for a class and what against it.

images.py     scenes: what is drawn where, what it means, and how it is rendered
networks.py   a small CNN and a small ViT, trained until they follow the rule
questions.py  the questions that are judged: interventions confirm the rule for each of them
scores.py     how much of a map lies where it should, with the right sign
picture.py    images with their shapes outlined, and maps beside them
__main__.py   `python -m benchmarks.planted`, the table of every method
"""
