"""Every method against a known rule, with signs: `python -m benchmarks.planted`.

Trains a small CNN and a small ViT on images made by code (6 and 20 minutes of one core; weights
are kept in `--weights`) and prints by intervention how well each follows the rule. Scores every
method's maps on images with both A and B of a class, where the network follows it. `images.py` has
the rule, `questions.py` the interventions and `scores.py` the scores. Figures are means over images
± one standard error; seconds include each method's first call. `--rise-masks 1000` saves most of
RISE's time, `--picture FILE` draws maps, and `--export FOLDER` writes the questions with a mask of
each shape A, for plans such as `plans/leaderboard.toml`, and scores nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.planted.export import export
from benchmarks.planted.images import as_inputs, render
from benchmarks.planted.networks import NETWORKS, load_network
from benchmarks.planted.picture import draw_maps
from benchmarks.planted.questions import Question, questions, rates_of
from benchmarks.planted.scores import SCORES, Masks, is_unsigned, score_maps
from dmbp.attribution import METHODS, parse_method_names
from dmbp.errors import DMBPError

JUDGING_SEED = 3
MOST_DRAWN = 20
"""Give up if fewer than one in this many questions is confirmed."""


def find_questions(network: nn.Module, count: int) -> list[Question]:
    """Return confirmed questions, and print how many were drawn for them."""
    drawn: list[Question] = []
    kept: list[Question] = []
    for question in islice(questions(network, JUDGING_SEED), MOST_DRAWN * count):
        drawn.append(question)
        kept += [question] * question.effects.confirmed()
        if len(kept) == count:
            break
    print(f"  all {len(drawn)} questions: {rates_of([q.effects for q in drawn])}")
    print(f"  interventions confirm {len(kept) / len(drawn):.1%}; these {len(kept)} are judged")
    if not kept:
        raise SystemExit("the network follows the rule on no image; delete its weights to retrain")
    return kept


def stack_masks(judged: Sequence[Question]) -> Masks:
    """Return the masks of all questions."""
    return Masks(*(torch.stack(role) for role in zip(*(q.masks() for q in judged), strict=True)))


def variants(name: str, rise_masks: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the labels and settings that a method is judged with."""
    settings: dict[str, Any] = {}
    if METHODS[name].probabilistic:
        settings["activation"] = "sigmoid"
    if name == "rise" and rise_masks:
        settings["masks"] = rise_masks
    yield name, settings
    if name == "gradcam":
        yield "gradcam signed", {"signed": True}


def table_row(found: dict[str, Tensor], unsigned: bool, seconds: float) -> dict[str, Any]:
    """Return each score's mean and standard error, and None where it means nothing."""
    row: dict[str, Any] = {"seconds": seconds}
    for name, values in found.items():
        error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else 0.0
        row[name] = {"mean": float(values.mean()), "error": error}
    if unsigned:
        row["negative on B"] = None
    return row


def format_row(name: str, row: dict[str, Any]) -> str:
    """Return a row of a Markdown table."""
    cells = [f"{s['mean']:.3f} ± {s['error']:.3f}" if s else "–" for s in map(row.get, SCORES)]
    return " | ".join([f"| {name}", *cells, f"{row['seconds']:.3f} |"])


def judge(network: nn.Module, options: argparse.Namespace) -> dict[str, Any]:
    """Print the table of a network and return it; draw the first maps of each method if asked."""
    judged = find_questions(network, options.count)
    inputs = as_inputs([render(question.scene) for question in judged]).to(options.device)
    network.to(options.device)
    targets, masks = [question.target for question in judged], stack_masks(judged)
    areas = [f"{name} {float(area.mean()):.3f}" for name, area in masks.areas().items()]
    print("  shares of the image's area: " + ", ".join(areas))
    print("\n| method | " + " | ".join(SCORES) + " | seconds per image |")
    print("| --- |" + " --- |" * (len(SCORES) + 1))
    rows: dict[str, Any] = {}
    drawn: dict[str, Tensor] = {}
    for name in parse_method_names(options.methods):
        for called, settings in variants(name, options.rise_masks):
            started = time.perf_counter()
            try:
                maps = METHODS[name](network, **settings).attribute(inputs, target=targets)
            except (DMBPError, RuntimeError) as error:
                print(f"| {called} | {error} |", flush=True)
                rows[called] = {"reason": str(error)}
                continue
            seconds = (time.perf_counter() - started) / len(inputs)
            maps = maps.cpu()
            rows[called] = table_row(score_maps(maps, masks), is_unsigned(maps), seconds)
            drawn[called] = maps[: options.rows].sum(1)
            print(format_row(called, rows[called]), flush=True)
    if options.picture is not None:
        draw_maps(judged[: options.rows], drawn).savefig(options.picture, dpi=90)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted", description=__doc__)
    parser.add_argument("--methods", default="all", help="names separated by commas, or all")
    parser.add_argument("--count", type=int, default=100, help="questions for each network")
    parser.add_argument("--network", choices=[*NETWORKS, "both"], default="both")
    parser.add_argument("--weights", type=Path, default=Path("build/planted"))
    parser.add_argument("--rise-masks", type=int)
    parser.add_argument("--picture", type=Path, help="draw maps of one network into this file")
    parser.add_argument("--rows", type=int, default=4, help="questions in the picture")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--export", type=Path, help="write the questions into this folder instead")
    options = parser.parse_args()
    if options.picture is not None and options.network == "both":
        parser.error("--picture needs --network cnn or --network vit")
    results: dict[str, Any] = {}
    for name in NETWORKS if options.network == "both" else [options.network]:
        print(f"\n{name}")
        network = load_network(name, options.weights, options.device)
        if options.export is not None:
            export(find_questions(network, options.count), options.export / name)
            continue
        results[name] = judge(network, options)
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
