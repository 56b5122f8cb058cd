"""Classifiers: how a photo becomes an input, how classes are named, what outputs mean."""

from dataclasses import replace
from typing import Any, get_args

import numpy
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from dmbp.errors import InputError, ModelError, PhotoError, TargetError
from dmbp.models import Classifier, Preprocessing
from dmbp.models.classifier import Fit, move_module, run_classifier

PHOTO = Image.new("RGB", (300, 200))


@pytest.mark.parametrize(
    ("fit", "size"),
    [
        *(("crop", (64, 64)), ("squeeze", (64, 64))),
        *(("squeeze-crop", (64, 64)), ("whole", (96, 64))),
        *(("letterbox", (64, 64)), ("letterbox-corner", (64, 64))),
    ],
)
def test_size(fit: Fit, size: tuple[int, int]) -> None:
    seen = Preprocessing(resize=80, crop=64, fit=fit)
    assert seen.view(PHOTO).size == size
    assert seen.tensor(seen.view(PHOTO)).shape == (1, 3, size[1], size[0])


@pytest.mark.parametrize(
    ("fit", "resize", "scaled"),
    [
        ("crop", 40, (60, 40)),
        ("crop", (40, 100), (100, 66)),
        ("crop", (60, 50), (90, 60)),
        ("squeeze", 40, (48, 32)),
        ("squeeze-crop", (40, 60), (60, 40)),
    ],
)
def test_rectangles(fit: Fit, resize: Any, scaled: tuple[int, int]) -> None:
    """A photo of 300×200 covers what it is resized to; the model sees 32 rows of 48 pixels."""
    seen = Preprocessing(resize=resize, crop=(32, 48), fit=fit)
    assert seen.scaled_size(PHOTO.size) == scaled
    assert seen.view(PHOTO).size == (48, 32)
    assert seen.tensor(seen.view(PHOTO)).shape == (1, 3, 32, 48)
    assert seen.size == (32, 48)


def test_the_centre_of_a_rectangle() -> None:
    """Only the middle of a photo is red; a crop of its shape and size shows nothing else."""
    photo = Image.new("RGB", (100, 100), "blue")
    photo.paste(Image.new("RGB", (60, 20), "red"), (20, 40))
    view = Preprocessing(resize=100, crop=(20, 60)).view(photo)
    assert view.getcolors() == [(20 * 60, (255, 0, 0))]


@pytest.mark.parametrize(
    ("fit", "size", "left", "top", "width", "height"),
    [
        ("letterbox", (60, 40), 0, 10, 60, 40),
        ("letterbox", (25, 50), 15, 0, 30, 60),
        ("letterbox", (61, 40), 0, 10, 60, 39),  # of 21 rows, 11 are below
        ("letterbox-corner", (61, 40), 0, 0, 60, 39),
        ("letterbox-corner", (25, 50), 0, 0, 30, 60),
    ],
)
def test_a_letterbox(
    fit: Fit, size: tuple[int, int], left: int, top: int, width: int, height: int
) -> None:
    """All of a photo is red, and what is added to it is grey, wherever it is."""
    seen = Preprocessing(crop=60, fit=fit, padding=99)
    view = seen.view(Image.new("RGB", size, "red"))
    expected = Image.new("RGB", (60, 60), (99,) * 3)
    expected.paste("red", (left, top, left + width, top + height))
    assert numpy.array_equal(numpy.asarray(view), numpy.asarray(expected))
    frame = seen.frame(size)
    assert frame.to_view((0, 0)) == pytest.approx((left, top))
    assert frame.to_view(size) == pytest.approx((left + width, top + height))
    assert frame.to_photo(frame.to_view((3, 5))) == pytest.approx((3, 5))
    assert seen.as_dict()["padding"] == 99
    deep = replace(seen, mean=(0.0,), std=(1.0,))
    found = deep.tensor(deep.view(Image.new("F", size, 0.5)))
    assert found.unique().tolist() == pytest.approx([99 / 255, 0.5])


def test_a_square_pair_is_a_number() -> None:
    assert Preprocessing(resize=(256, 256), crop=[224, 224]) == Preprocessing()  # pyright: ignore[reportArgumentType]
    assert Preprocessing(342, 299).with_size(224) == Preprocessing(256, 224)
    assert Preprocessing(crop=(112, 224)).as_dict()["crop"] == [112, 224]


@pytest.mark.parametrize(
    "seen",
    [
        Preprocessing(crop=(8, 16), fit="squeeze", channels="bgr"),
        Preprocessing(crop=8, scale=255.0, channels="bgr", mean=(104, 117, 123), std=(1, 2, 3)),
        Preprocessing(crop=8, scale=255.0, mean=(100,), std=(50,)),
    ],
)
def test_an_input_turns_back_into_its_view(seen: Preprocessing) -> None:
    noise = Image.effect_noise((30, 20), 90).convert("RGB")
    view = seen.view(Image.merge("RGB", [noise.getchannel(0).rotate(a) for a in (0, 90, 180)]))
    pixels = seen.denormalise(seen.tensor(view))[0].permute(1, 2, 0)
    expected = torch.from_numpy(numpy.asarray(view).copy()) / 255
    assert (pixels - expected).abs().max() < 1e-5


def test_range_and_order_of_channels() -> None:
    """The range of 0 to 255 has the photo's own values."""
    seen = Preprocessing(crop=8, scale=255.0, channels="bgr", mean=(0, 0, 5), std=(1, 1, 2))
    inputs = seen.tensor(seen.view(Image.new("RGB", (9, 9), (201, 100, 50))))
    assert inputs[0, :, 0, 0].tolist() == [50, 100, 98]
    assert (seen.as_dict()["scale"], seen.as_dict()["channels"]) == (255, "bgr")


def test_one_channel() -> None:
    """Photos turn grey as in Pillow and are normalised by one mean and std."""
    seen = Preprocessing(crop=16, fit="squeeze", mean=(0.5,), std=(0.25,))
    inputs = seen.tensor(seen.view(Image.new("RGB", (30, 20), "white")))
    assert inputs.shape == (1, 1, 16, 16)
    assert inputs.unique().tolist() == [2.0]
    assert Preprocessing.for_channels(3) == Preprocessing.for_channels(None) == Preprocessing()
    assert len(Preprocessing.for_channels(1).mean) == 1


def test_only_crops_leave_out_the_border() -> None:
    """A crop of the centre does not contain the red border of a photo; the other fits do."""
    photo = Image.new("RGB", (200, 200), "red")
    photo.paste(Image.new("RGB", (160, 160), "blue"), (20, 20))
    for fit in get_args(Fit):
        view = Preprocessing(resize=100, crop=60, fit=fit).view(photo)
        assert (view.getpixel((0, 0)) == (0, 0, 255)) is fit.endswith("crop")


def test_a_photo_can_be_squeezed_before_it_is_cropped() -> None:
    """Squeezing first keeps most of the red ends of a wide photo; cropping alone removes them."""
    photo = Image.new("RGB", (360, 180), "red")
    photo.paste(Image.new("RGB", (280, 180), "blue"), (40, 0))
    for fit, seen in (("squeeze-crop", (255, 0, 0)), ("crop", (0, 0, 255))):
        view = Preprocessing(resize=90, crop=80, fit=fit).view(photo)
        assert view.getpixel((2, 40)) == seen


@pytest.mark.parametrize("size", [(640, 480), (20, 300), (224, 224), (17, 17)])
def test_preprocessing_sees_the_centre(size: tuple[int, int]) -> None:
    preprocessing = Preprocessing()
    view = preprocessing.view(Image.new("RGB", size, (255, 0, 0)))
    tensor = preprocessing.tensor(view)
    assert view.size == (224, 224)
    assert tensor.shape == (1, 3, 224, 224)
    assert tensor[0, 0, 0, 0] == pytest.approx((1 - 0.485) / 0.229)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"crop": (224, 160, 3)},
            "'crop' of a Preprocessing must be a number of pixels, or height",
        ),
        ({"crop": (224, 5000)}, "'crop' of a Preprocessing must be .* at most 4096"),
        ({"crop": (224, 160), "fit": "whole"}, "must be one number, the short side, not 224×160"),
        ({"scale": 0.0}, "'scale' of a Preprocessing must be a number above zero"),
        ({"channels": "bgr", "mean": (0.5,), "std": (0.5,)}, "one number each, for grey"),
        ({"channels": "rbg"}, 'must be "rgb" or "bgr", not \'rbg\''),
        ({"crop": 10**6}, "'crop' of a Preprocessing must be a number of pixels.*at most 4096"),
        ({"resize": -5}, "'resize' of a Preprocessing must be a number of pixels"),
        ({"interpolation": "bicubic"}, "one of Pillow's"),
        ({"std": (0.0, 0.0, 0.0)}, "above zero in every channel"),
        ({"mean": "half"}, "a number for each channel"),
    ],
)
def test_invalid_preprocessing_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Preprocessing(**given)


def test_means_may_be_tensors() -> None:
    assert Preprocessing(mean=torch.tensor([0.5, 0.5, 0.25])).mean == (0.5, 0.5, 0.25)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"classes": {0: "dog", 1: "cat"}}, "must be a list of names in the order of the outputs"),
        ({"classes": (1, 2)}, "must be a list of names in the order of the outputs"),
        (
            {"preprocessing": ((0.5,) * 3,)},
            "'preprocessing' of a Classifier must be a Preprocessing",
        ),
        (
            {"module": "resnet18"},
            "'module' of a Classifier must be a PyTorch module, not 'resnet18'",
        ),
    ],
)
def test_invalid_classifiers_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Classifier(**({"name": "mine", "module": nn.Linear(2, 2)} | given))


def test_two_names_for_a_yes_or_no() -> None:
    with pytest.raises(TargetError, match="name what yes stands for"):
        Classifier("mine", nn.Linear(2, 1), classes=("cat", "dog")).check_classes(torch.zeros(1))


CLASSIFIER = Classifier(
    "pets", nn.Identity(), classes=("tabby cat", "tiger cat", "goldfish", "sea-horse")
)


@pytest.mark.parametrize(
    ("text", "index"),
    [("0", 0), ("goldfish", 2), ("Goldfish ", 2), ("cat", 1), ("tabby", 0), ("horse", 3)],
)
def test_classes_by_number_name_or_word(text: str, index: int) -> None:
    assert CLASSIFIER.class_index(text, torch.tensor([1.0, 2.0, 0.0, 0.0])) == index


def test_classes_that_do_not_exist() -> None:
    outputs = torch.zeros(4)
    for text, sentence in [
        ("goldfsh", "no class 'goldfsh'; did you mean 'goldfish'"),
        ("zebra", "no class 'zebra'; there are tabby cat"),
        ("4", "class 4 is out of range: the model has classes 0 to 3"),
        ("-1", "out of range"),
        ("²", "no class '²'"),
    ]:
        with pytest.raises(TargetError, match=sentence):
            CLASSIFIER.class_index(text, outputs)
    with pytest.raises(TargetError, match="no names"):
        Classifier("x", nn.Identity()).class_index("cat", outputs)


def test_a_single_output_is_a_yes_or_no() -> None:
    assert Classifier("x", nn.Identity()).probabilities(torch.tensor([-0.5])).item() < 0.5


class Clamped(nn.Module):
    """A sigmoid that is kept away from zero and one."""

    def forward(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores).clamp(1e-6, 1 - 1e-6)


class Doubled(nn.Module):
    """Twice a sigmoid, which is not a probability."""

    def forward(self, scores: Tensor) -> Tensor:
        return 2 * torch.sigmoid(scores)


@pytest.mark.parametrize(
    ("last", "activation"),
    [
        (nn.Sigmoid(), "sigmoid"),
        (nn.Softmax(1), "softmax"),
        (Clamped(), "sigmoid"),
        (Doubled(), "softmax"),
        (nn.LogSoftmax(1), "softmax"),
        (nn.Identity(), "softmax"),
    ],
)
@pytest.mark.filterwarnings("ignore:the model ends in a")
def test_probabilities_are_the_models_own(last: nn.Module, activation: str) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), last).eval()
    inputs = torch.randn(2, 3, 2, 2)
    outputs, classifier = run_classifier(Classifier("a model", module), inputs)
    is_stripped = not isinstance(last, nn.Identity | Doubled)
    assert torch.equal(outputs, module[:2](inputs) if is_stripped else module(inputs))
    assert classifier.activation == activation
    if is_stripped and not isinstance(last, Clamped | nn.LogSoftmax):
        assert torch.equal(classifier.probabilities(outputs), module(inputs))


@pytest.mark.parametrize("fit", ["crop", "whole"])
def test_photos_are_not_scaled_to_gigabytes(fit: Fit) -> None:
    preprocessing = Preprocessing(resize=2000, crop=2000, fit=fit)
    assert preprocessing.scaled_size((100, 200)) == (2000, 4000)
    with pytest.raises(PhotoError, match="200×10000 pixels would be scaled to 2000×100000 for the"):
        preprocessing.view(Image.new("RGB", (200, 10_000)))


def test_a_model_without_data_is_not_moved() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].to("meta")
    with pytest.raises(ModelError, match=r"'1\.weight' is on the meta device and has no data"):
        move_module(module, "cpu")


def test_numbers_of_thousands_of_digits_are_out_of_range() -> None:
    classifier = Classifier("a", nn.Identity())
    with pytest.raises(
        TargetError, match=r"class 9+…9+ is out of range: the model has classes 0 to"
    ):
        classifier.class_index("9" * 5000, torch.zeros(3))
