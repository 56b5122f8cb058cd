"""ImageNet's validation set (ILSVRC2012), in the two layouts in which it is distributed.

By synset: a folder for each of the thousand synsets, `n01440764/ILSVRC2012_val_….JPEG`. Classes
are numbered by the sorted synsets, as ImageNet models number them.

Flat: all photos are in one folder, beside a list of their classes, which is one of

    val.txt                                  ILSVRC2012_val_00000001.JPEG 65
    ILSVRC2012_validation_ground_truth.txt   490                    in the order of the photos

The second list comes from the official development kit. It counts from one, in an order that has to
be given by `synsets.txt` in the same folder, one synset a line.
"""

import random
import re
from pathlib import Path

from dmbp.data.photo import photo_names
from dmbp.data.sample import Label, Sample, samples_in
from dmbp.errors import PhotoError

CLASSES = 1000
SYNSET = re.compile(r"n\d{8}")
GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def read_imagenet(root: Path) -> list[Sample]:
    """Return every photo of the validation set with its class."""
    if not root.is_dir():
        raise PhotoError(f"{root} is not a folder")
    folders = sorted(p for p in root.iterdir() if p.is_dir() and SYNSET.fullmatch(p.name))
    if folders:
        return _read_by_synset(root, folders)
    photos = photo_names(root)
    if not photos:
        raise PhotoError(f"{root} has neither folders of synsets (n01440764, …) nor photos")
    if (root / "val.txt").is_file():
        return _read_val_list(root, photos)
    if (root / GROUND_TRUTH).is_file():
        return _read_ground_truth(root, photos)
    raise PhotoError(
        f"{root} has photos but no list of their classes: put val.txt or {GROUND_TRUTH} there"
    )


def read_imagenet_5k(root: Path) -> list[Sample]:
    """Return five photos of each class, drawn at random with a fixed seed."""
    classes: dict[Label, list[Sample]] = {}
    for sample in read_imagenet(root):
        classes.setdefault(sample.labels[0], []).append(sample)
    draw = random.Random(0)
    return [
        sample
        for label in sorted(classes, key=str)
        for sample in draw.sample(classes[label], min(5, len(classes[label])))
    ]


def _read_by_synset(root: Path, folders: list[Path]) -> list[Sample]:
    listed = _read_synsets(root / "synsets.txt") if (root / "synsets.txt").is_file() else None
    names = sorted(listed) if listed is not None else [folder.name for folder in folders]
    if listed is None and len(names) != CLASSES:
        raise PhotoError(
            f"{root} has {len(names)} folders of synsets, not {CLASSES}: put synsets.txt there, "
            f"with all {CLASSES} synsets, one a line"
        )
    number = {name: index for index, name in enumerate(names)}
    for folder in folders:
        if folder.name not in number:
            raise PhotoError(f"{root / 'synsets.txt'} does not have {folder.name}")
    samples = [sample for folder in folders for sample in samples_in(folder, number[folder.name])]
    if not samples:
        raise PhotoError(f"the folders of synsets in {root} have no photos")
    return samples


def _read_val_list(root: Path, photos: list[str]) -> list[Sample]:
    """Read a list of files and classes, which are numbered from zero over the sorted synsets."""
    path = root / "val.txt"
    classes: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        parts = line.split()
        if len(parts) != 2 or not parts[1].isdecimal() or int(parts[1]) >= CLASSES:
            raise PhotoError(f"line {number} of {path} is not a file and a class: {line!r}")
        classes[Path(parts[0]).name] = int(parts[1])
    missing = [photo for photo in photos if photo not in classes]
    if missing:
        raise PhotoError(f"{path} does not have {missing[0]}")
    return [Sample(photo, root, photo, (classes[photo],)) for photo in photos]


def _read_ground_truth(root: Path, photos: list[str]) -> list[Sample]:
    """Read the development kit's list, which numbers classes from one, as synsets.txt does."""
    truth = _lines(root / GROUND_TRUTH)
    if not (root / "synsets.txt").is_file():
        raise PhotoError(
            f"{root / GROUND_TRUTH} numbers classes in an order of its own: put synsets.txt there, "
            "with all synsets in that order, one a line"
        )
    if len(truth) != len(photos):
        raise PhotoError(
            f"{root / GROUND_TRUTH} has {len(truth)} lines for {len(photos)} photos: it needs one "
            "line for each photo of the whole validation set, in their order"
        )
    order = _read_synsets(root / "synsets.txt")
    number = {name: index for index, name in enumerate(sorted(order))}
    samples: list[Sample] = []
    for photo, line in zip(photos, truth, strict=True):
        if not line.isdecimal() or not 1 <= int(line) <= len(order):
            raise PhotoError(f"{root / GROUND_TRUTH} has {line!r} for {photo}, not a class")
        samples.append(Sample(photo, root, photo, (number[order[int(line) - 1]],)))
    return samples


def _read_synsets(path: Path) -> list[str]:
    """Read the synsets that stand at the start of each line."""
    synsets = [line.split()[0] for line in _lines(path)]
    wrong = [name for name in synsets if not SYNSET.fullmatch(name)]
    if wrong or len(synsets) != CLASSES or len(set(synsets)) != CLASSES:
        count = f"it has {len(set(synsets))} synsets"
        problem = f"{wrong[0]!r} is not a synset" if wrong else count
        raise PhotoError(f"{path} is not a list of ImageNet's {CLASSES} synsets: {problem}")
    return synsets


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise PhotoError(f"cannot read {path}: {error}") from error
