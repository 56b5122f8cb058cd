"""Questions beyond "which class", asked of real networks: `python -m benchmarks.questions FOLDER`.

    pip download --no-deps --dest FOLDER ddddocr facenet-pytorch rapidocr-onnxruntime

FOLDER has these packages. Their detector of characters is asked about its strongest box, their
detectors of faces about a face, their detector of text about one of two signs, and their reader
about the third character of a word. Where each of them is, is known: images are drawn, but for the
face, which MTCNN's last network locates in scikit-image's astronaut.

Each line has the share of the red that lies there, the share of the image that this place takes,
whether the score falls without red however it is removed, and the seconds. `--seeds 6 7 11` asks
about other drawings, `--pictures FOLDER` draws the explanations.
"""

import argparse
import importlib
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from dmbp.attribution import DMBP
from dmbp.models import InputSettings, load_model
from dmbp.models.classifier import Classifier, Frame, Preprocessing
from dmbp.models.torchvision_models import import_torchvision
from dmbp.targets import Region, boxes_in
from dmbp.workflows.batches import explain_photo
from dmbp.workflows.prediction import run_on_photo
from dmbp.workflows.sources import Photo

Corners = tuple[float, float, float, float]
"""Left, top, right and bottom."""

Drawn = tuple[Image.Image, list[Corners]]
"""An image, and where on it each thing is."""

FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans-Bold.ttf"
LETTERS = "ABDEGHKMRSXY47"
SIGNS = ("EXIT", "PLATFORM", "TAXI", "CAFE", "MUSEUM", "BAKERY", "STATION", "PARKING")
WORDS = ("PLANTS", "RIVERS", "MARKET", "GARDEN", "BRIDGE", "FOREST")

FACE: Corners = (177, 57, 269, 178)
"""Where MTCNN's last network puts the face of the astronaut."""

WHOLE: Corners = (0, 0, 512, 512)
HEAD: Corners = (143, 37, 303, 197)
"""The astronaut, and a square around her face, as MTCNN's last network is given squares."""


@dataclass(frozen=True)
class Question:
    """What is asked about a photo, and where in its pixels the answer lies."""

    name: str
    photo: Image.Image
    classifier: Classifier
    target: str
    place: Corners


def captcha(generator: numpy.random.Generator, side: int = 416) -> Drawn:
    """Draw four turned letters in the quarters of a colourful ground, with lines between them."""
    y, x = numpy.mgrid[:side, :side] / side
    waves = [
        120
        + 60 * numpy.sin(6 * x * generator.uniform(0.3, 1) + generator.uniform(0, 6))
        + 40 * numpy.cos(5 * y * generator.uniform(0.3, 1) + generator.uniform(0, 6))
        for _ in range(3)
    ]
    ground = numpy.stack(waves, 2) + generator.normal(0, 8, (side, side, 3))
    image = Image.fromarray(ground.clip(0, 255).astype("uint8"))
    pen = ImageDraw.Draw(image)
    for _ in range(6):
        ends = generator.uniform(0, side, 4).round().tolist()
        pen.line(ends, fill=colour(generator, 0, 255), width=2)
    places: list[Corners] = []
    for quarter, letter in enumerate(generator.choice(list(LETTERS), 4, replace=False)):
        size = int(generator.integers(60, 85))
        stamp = Image.new("L", (2 * size, 2 * size))
        ImageDraw.Draw(stamp).text((size, size), letter, font=font(size), fill=255, anchor="mm")
        stamp = stamp.rotate(float(generator.uniform(-25, 25)))
        left, top = (
            side // 4 + side // 2 * k + int(generator.integers(-30, 30)) - size
            for k in (quarter % 2, quarter // 2)
        )
        image.paste(colour(generator, 0, 255), (left, top), stamp)
        box = stamp.getbbox()
        assert box is not None
        places.append((left + box[0], top + box[1], left + box[2], top + box[3]))
    return image, places


def signs(generator: numpy.random.Generator) -> Drawn:
    """Draw two signs with a word each, and return where the words are."""
    image = Image.new("RGB", (448, 320), colour(generator, 120, 190))
    pen = ImageDraw.Draw(image)
    places: list[Corners] = []
    for line, word in enumerate(generator.choice(list(SIGNS), 2, replace=False)):
        middle = int(generator.integers(180, 270)), 80 + 150 * line + int(generator.integers(15))
        own = font(int(generator.integers(32, 42)))
        left, top, right, bottom = pen.textbbox(middle, word, font=own, anchor="mm")
        board = (left - 20, top - 16, right + 20, bottom + 16)
        pen.rectangle(board, fill=colour(generator, 0, 90))
        pen.text(middle, word, font=own, fill="white", anchor="mm")
        places.append((left, top, right, bottom))
    return image, places


def word(text: str) -> Drawn:
    """Draw a word of one line, and return where its characters are."""
    image = Image.new("RGB", (320, 48), (225, 225, 210))
    pen, own = ImageDraw.Draw(image), font(34)
    places: list[Corners] = []
    left = (320 - own.getlength(text)) / 2
    for letter in text:
        places.append(pen.textbbox((left, 24), letter, font=own, anchor="lm"))
        pen.text((left, 24), letter, font=own, fill=(20, 20, 60), anchor="lm")
        left += own.getlength(letter)
    return image, places


def font(size: int) -> ImageFont.FreeTypeFont:
    """Return matplotlib's own font, which is the same everywhere."""
    return ImageFont.truetype(str(FONT), size)


def colour(generator: numpy.random.Generator, least: int, most: int) -> tuple[int, ...]:
    """Draw a colour."""
    return tuple(generator.integers(least, most, 3).tolist())


def boxes(models: Path, seeds: Sequence[int]) -> Iterator[Question]:
    """The strongest box that ddddocr's detector (YOLOX) finds in a captcha, grown by half."""
    settings = InputSettings(scale=255, channels="bgr", fit="squeeze")
    detector = load_model(str(models / "common_det.onnx"), inputs=settings)
    for seed in seeds:
        photo, _ = captcha(numpy.random.default_rng(seed))
        box = boxes_in(run_on_photo(photo, "captcha", detector).context)[0]
        place = grown(box.corners, 0.5)
        yield Question(
            f"captcha {seed}, box ({box.probability:.0%})", photo, detector, "box:0", place
        )


def faces(models: Path, seeds: Sequence[int]) -> Iterator[Question]:  # noqa: ARG001
    """The face of the astronaut, for MTCNN's first network and for its last one."""
    from skimage.data import astronaut

    sys.path.insert(0, str(models))
    import_torchvision()
    mtcnn = importlib.import_module("facenet_pytorch.models.mtcnn")
    # The first network has no padding: with it, its map covers the image.
    first, last = nn.Sequential(nn.ZeroPad2d(5), mtcnn.PNet()), mtcnn.ONet()
    photo = Image.fromarray(astronaut())
    for name, network, output, side, seen, target in (
        ("P-Net", first, 1, 52, WHOLE, "region:face"),
        ("O-Net", last, 2, 48, HEAD, "face"),
    ):
        settings = Preprocessing(
            crop=side, resize=side, fit="squeeze", mean=(127.5,) * 3, std=(128,) * 3, scale=255
        )
        network = OneOutput(network, output).eval()
        classifier = Classifier(name, network, settings, ("none", "face"))
        place = moved(FACE, -seen[0], -seen[1])
        yield Question(f"astronaut, face ({name})", photo.crop(seen), classifier, target, place)


class OneOutput(nn.Module):
    """One of the outputs of a network."""

    def __init__(self, network: nn.Module, output: int) -> None:
        super().__init__()
        self.network, self.output = network, output

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[self.output]


def regions(models: Path, seeds: Sequence[int]) -> Iterator[Question]:
    """A box around the second of two signs, for PP-OCR's detector of text, and the sign's word."""
    settings = InputSettings(mean=(0.5,), std=(0.5,), size=(320, 448))
    detector = load_model(str(models / "ch_PP-OCRv4_det_infer.onnx"), inputs=settings)
    for seed in seeds:
        photo, places = signs(numpy.random.default_rng(seed))
        yield Question(
            f"signs {seed}, the lower",
            photo,
            detector,
            Region(box=grown(places[1], 0.2)).text,
            grown(places[1], 0.5),
        )


def characters(models: Path, seeds: Sequence[int]) -> Iterator[Question]:
    """The columns of the third character of a word, for PP-OCR's reader."""
    settings = InputSettings(mean=(0.5,), std=(0.5,), size=(48, 320))
    reader = load_model(str(models / "ch_PP-OCRv4_rec_infer.onnx"), inputs=settings)
    for seed in seeds:
        text = WORDS[seed % len(WORDS)]
        photo, places = word(text)
        left, _, right, _ = places[2]
        columns = (left - 2, 0, right + 2, photo.height)
        yield Question(f"{text}, third character", photo, reader, "step:#2", columns)


QUESTIONS: Sequence[Callable[[Path, Sequence[int]], Iterator[Question]]] = (
    faces,
    characters,
    regions,
    boxes,
)


def grown(place: Corners, share: float) -> Corners:
    """Return a place with sides longer by a share, around the same middle."""
    left, top, right, bottom = place
    across, down = share * (right - left) / 2, share * (bottom - top) / 2
    return left - across, top - down, right + across, bottom + down


def moved(place: Corners, across: float, down: float) -> Corners:
    """Return a place that is moved."""
    return place[0] + across, place[1] + down, place[2] + across, place[3] + down


def inside(place: Corners, frame: Frame) -> Tensor:
    """Return a place of the photo as a mask of the model's input."""
    (left, top), (right, bottom) = frame.to_view(place[:2]), frame.to_view(place[2:])
    x, y = (torch.arange(side) + 0.5 for side in frame.view)
    return ((y > top) & (y < bottom))[:, None] & ((x > left) & (x < right))


def answer(question: Question, pictures: Path | None) -> str:
    """Explain a target, and return a line about it."""
    explainer = DMBP(question.classifier.module)
    photo = Photo(question.name, "photo", question.photo, [question.target])
    explanation = explain_photo(photo, question.classifier, explainer)
    d, prediction = explanation.decomposition, explanation.prediction
    red = d.attribution[0].sum(0).clamp(min=0)
    mask = inside(question.place, prediction.frame)
    share, area = red[mask].sum() / red.sum(), mask.double().mean()
    assert d.tested is not None
    confirmed = "confirmed" if d.tested.is_confirmed.all() else "not confirmed"
    if pictures is not None:
        name = "".join(k if k.isalnum() else "-" for k in question.name)
        explanation.plot(pictures / f"{name}.png")
    seconds = explanation.seconds["explaining"]
    return (
        f"{question.name}: {share:.1%} of red on {area:.1%} of the image; {confirmed}; "
        f"{prediction.targets[0].label()}; exact to {d.exactness:.0e}; {seconds:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=(0, 1, 2), help="the numbers of the drawn images"
    )
    parser.add_argument("--only", choices=[kind.__name__ for kind in QUESTIONS])
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as extracted:
        models = Path(extracted)
        for wheel in sorted(options.folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(".onnx"):
                        (models / Path(name).name).write_bytes(archive.read(name))
                    elif name.startswith("facenet_pytorch/"):
                        archive.extract(name, models)
        for kind in QUESTIONS:
            if options.only in (None, kind.__name__):
                for question in kind(models, options.seeds):
                    print(answer(question, options.pictures), flush=True)


if __name__ == "__main__":
    sys.exit(main())
