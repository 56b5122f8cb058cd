"""Datasets are explained item by item, written as they are, and continued after a kill."""

import json
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from dmbp import DMBP
from dmbp.errors import InputError, TargetError
from dmbp.workflows.datasets import ExplainedItem, explain_dataset
from dmbp.workflows.datasets.folder import read_records

COUNT, CLASSES, SIDE = 10, 4, 8
FAST: dict[str, Any] = {"iterations": 1, "mixtures": 0, "floor": 0.3, "progress": False}
FOUR: dict[str, Any] = {**FAST, "batch_size": 4}


class Counted(Dataset[tuple[Tensor, int]]):
    """Counts which items are read."""

    def __init__(self, count: int = COUNT) -> None:
        generator = torch.Generator().manual_seed(3)
        self.images = torch.randn(count, 3, SIDE, SIDE, generator=generator)
        self.labels = [k % CLASSES for k in range(count)]
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.read.append(index)
        return self.images[index], self.labels[index]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES)
    ).eval()


@pytest.fixture(scope="module")
def explainer(model: nn.Module) -> DMBP:
    """One explainer for all tests, so that the model is captured once."""
    return DMBP(model, iterations=1, mixtures=0, floor=0.3)


@pytest.fixture(scope="module")
def expected(explainer: DMBP) -> list[ExplainedItem]:
    return list(explain_dataset(Counted(), explainer, batch_size=4, progress=False))


def same(found: list[ExplainedItem], expected: list[ExplainedItem]) -> bool:
    """Whether results are equal to the last bit, but for the time they took."""
    pairs = list(zip(found, expected, strict=True))
    untimed = (
        [{**k.record(), "seconds": 0} for k, _ in pairs],
        [{**k.record(), "seconds": 0} for _, k in pairs],
    )
    return untimed[0] == untimed[1] and all(
        torch.equal(a.attribution, b.attribution) for a, b in pairs
    )


def test_what_is_found_is_what_explain_finds(
    explainer: DMBP, expected: list[ExplainedItem]
) -> None:
    data = Counted()
    d = explainer.explain(data.images[4:8], target=data.labels[4:8])
    assert [item.index for item in expected] == list(range(COUNT))
    assert [item.target for item in expected] == data.labels
    for row, item in enumerate(expected[4:8]):
        assert torch.equal(item.attribution, d.attribution[row])
        assert item.score == d.output[row].item()
        assert item.worth_for == d.worth_for[row].item()
        assert d.tested is not None
        assert item.confirmed == bool(d.tested.is_confirmed[row])


def test_targets(explainer: DMBP, model: nn.Module) -> None:
    data = Counted(3)
    options: Any = {"progress": False}
    best = model(data.images).argmax(1).tolist()
    images = list(data.images)

    def targets(data: Any, **more: Any) -> list[Any]:
        return [item.target for item in explain_dataset(data, explainer, **options, **more)]

    assert targets(data, target="predicted") == best
    assert targets(images) == best
    assert targets(data, target=2) == [2, 2, 2]
    assert targets(data, target={0: 1.0, 3: -1.0}) == [{"0": 1.0, "3": -1.0}] * 3
    with pytest.raises(InputError, match="item 0 has no label; use target='predicted'"):
        targets(images, target="label")


def test_the_kinds_of_data(explainer: DMBP, expected: list[ExplainedItem]) -> None:
    data = Counted()
    labels = torch.tensor(data.labels)

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(zip(data.images, data.labels, strict=True))

    named = [{"pixel_values": image, "label": k} for image, k in zip(data.images, labels)]  # noqa: B905
    kinds: list[Any] = [
        TensorDataset(data.images, labels),
        named,
        DataLoader(data, batch_size=3),
        DataLoader(named, batch_size=3),
        DataLoader(data, batch_size=None),
        DataLoader(data, batch_size=3, collate_fn=list),
        DataLoader(Stream(), batch_size=3),
        [(image.numpy(), numpy_label) for image, numpy_label in zip(data.images, labels.numpy())],  # noqa: B905
        (sample for sample in zip(data.images, data.labels, strict=True)),
    ]
    for kind in kinds:
        found = list(explain_dataset(kind, explainer, batch_size=4, progress=False))
        assert same(found, expected), kind


def test_items_of_different_shapes(model: nn.Module) -> None:
    images = [torch.randn(3, side, 8) for side in (8, 8, 10, 8)]
    found = list(explain_dataset(images, model, **FAST))
    assert [item.attribution.shape for item in found] == [image.shape for image in images]


def test_memory_stays_flat(explainer: DMBP) -> None:
    """At most two groups' attributions are alive, however many items there are."""
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0
    for item in explain_dataset(Counted(24), explainer, target=0, batch_size=2, progress=False):
        alive.add(item.attribution)
        del item
        most = max(most, len(alive))
    assert most <= 2


def test_a_run_that_was_killed_is_continued(
    explainer: DMBP, expected: list[ExplainedItem], tmp_path: Path
) -> None:
    folder = tmp_path / "maps"
    data = Counted()
    first = explain_dataset(data, explainer, folder=folder, batch_size=4, progress=False)
    assert same([next(first) for _ in range(5)], expected[:5])  # two groups of three are written
    first.close()  # pyright: ignore[reportAttributeAccessIssue]
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["00000000.safetensors", "00000004.safetensors", "results.jsonl", "run.json"]
    (folder / "00000000.safetensors").unlink()
    (folder / ".00000008.safetensors.part").write_bytes(b"half a file")
    (folder / "00000004.safetensors").write_bytes(
        (folder / "00000004.safetensors").read_bytes()[:-1]  # as after a loss of power
    )
    with (folder / "results.jsonl").open("ab") as results:
        results.write(b'{"index": 8, "tar')
    for again in (Counted(), DataLoader(Counted(), batch_size=3)):
        assert same(list(explain_dataset(again, explainer, folder=folder, batch_size=4)), expected)
    lines = (folder / "results.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["index"] for line in lines) == list(range(COUNT))
    assert read_records(folder) == sorted(map(json.loads, lines), key=lambda k: k["index"])
    assert read_records(folder)[3]["score"] == expected[3].score


@pytest.mark.parametrize("loads", [False, True])
def test_only_what_is_missing_is_read(explainer: DMBP, tmp_path: Path, loads: bool) -> None:
    data = Counted()
    kind: Any = DataLoader(data, batch_size=3) if loads else data
    list(explain_dataset(kind, explainer, folder=tmp_path, batch_size=4, progress=False))
    (tmp_path / "00000004.safetensors").unlink()
    data.read.clear()
    list(explain_dataset(kind, explainer, folder=tmp_path, batch_size=4, progress=False))
    assert data.read == [0, COUNT - 1, 4, 5, 6, 7]  # the first and the last tell the data


def test_what_differs_from_the_folder_is_named(
    explainer: DMBP, model: nn.Module, tmp_path: Path
) -> None:
    def run(
        data: Any = None, explainer: DMBP = explainer, target: Any = None, size: int = 4
    ) -> None:
        stream = explain_dataset(
            data or Counted(4), explainer, folder=tmp_path, target=target, batch_size=size
        )
        next(stream)

    run()
    others = nn.Sequential(*model[:-1], nn.Linear(16, CLASSES)).eval()
    settings = {"iterations": 1, "mixtures": 0, "floor": 0.3}
    with pytest.raises(InputError, match=r"results of another model \(its weights, settings or co"):
        run(explainer=DMBP(others, **settings))
    with pytest.raises(InputError, match=r"with other settings \(iterations was 1 and is 2\)"):
        run(explainer=DMBP(model, **{**settings, "iterations": 2}))
    with pytest.raises(InputError, match=r"of other targets \('label or predicted', now '2'\)"):
        run(target=2)
    with pytest.raises(InputError, match=r"of other data.* \(items was 4 and is 5"):
        run(Counted(5))
    with pytest.raises(InputError, match=r"in groups of another size \(4, now 2\)"):
        run(size=2)
    changed = Counted(4)
    changed.images[0] += 1
    with pytest.raises(InputError, match=r"data that change whenever they are read \(first item"):
        run(changed)
    (tmp_path / "run.json").unlink()
    with pytest.raises(InputError, match="is not empty and holds no results of explain_dataset"):
        run()
    with pytest.raises(InputError, match="holds no results of explain_dataset"):
        read_records(tmp_path / "nothing")


def test_shuffled_loaders_are_refused_with_a_folder(explainer: DMBP, tmp_path: Path) -> None:
    loader = DataLoader(Counted(), batch_size=3, shuffle=True)
    with pytest.raises(InputError, match="a DataLoader that shuffles"):
        explain_dataset(loader, explainer, folder=tmp_path)
    assert not os.listdir(tmp_path)
    stream = explain_dataset(loader, explainer, batch_size=4, progress=False)
    assert [item.label for item in stream] != Counted().labels


image = torch.zeros(3, SIDE, SIDE) + torch.arange(SIDE)


@pytest.mark.parametrize(
    ("sample", "sentence"),
    [
        ((image[:1], 0), r"item 1, of shape \(1, 8, 8\): the model .*does not run"),
        ((image[0], 0), r"item 1, of shape \(8, 8\): "),
        ((image.double(), 0), r"item 1, of shape \(3, 8, 8\): .*use inputs.to\(torch.float32\)"),
        ((image.byte(), 0), "item 1, .*: inputs must be floating point, not torch.uint8"),
        ((image / 0, 0), "item 1, .*: the inputs contain NaN or infinity"),
        ((image, 4), "item 1: its label 4 is not one of the model's 4 classes, 0 to 3"),
        ((image, -1), "item 1: its label -1 is not one of"),
        ((image, "cat"), "item 1: its label is not a class's number but a str 'cat'"),
        (
            (image, torch.ones(4)),
            r"item 1: .* but a Tensor of shape \(4,\); use target=",
        ),
        ((image, 0, 0), "item 1 has 3 parts; wrap the dataset"),
        ({"a": image}, "item 1 is a dictionary without an input: it has 'a', and none of"),
        ("photo.jpg", "item 1: its input is of type str, not a tensor; give the dataset a tran"),
    ],
)
def test_items_that_cannot_be_explained(explainer: DMBP, sample: Any, sentence: str) -> None:
    data = [(image, 0), sample, (image, 1)]
    with pytest.raises((InputError, TargetError), match=sentence):
        list(explain_dataset(data, explainer, progress=False))


@pytest.mark.parametrize(
    ("data", "options", "sentence"),
    [
        (image, {}, "not of type Tensor; put a tensor into a torch.utils.data.TensorDataset"),
        ("photos", {}, "not of type str"),
        (7, {}, "not of type int"),
        ([image], {"batch_size": 0}, "batch_size must be 1 or more, or 'auto', not 0"),
        ([image], {"target": "cat"}, "target must be 'label', 'predicted', a class's number"),
        ([image], {"iterations": 3}, "iterations: settings belong to the DMBP that is given"),
    ],
)
def test_calls_that_are_refused_at_once(
    explainer: DMBP, data: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        explain_dataset(data, explainer, **options)
