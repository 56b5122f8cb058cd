"""The process that decodes photos that anyone may have sent, within limits of its own.

It knows JPEG, PNG and WebP, by content; memory and the number of open files are limited, and it
cannot write to a file. It imports neither PyTorch nor a model. What leaves it are pixels: Exif data
and other metadata stay behind.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from dmbp.data.photo import photo_of, without_size_warnings
from dmbp.errors import DMBPError
from dmbp.web.worker_process import FailedAsk, Report, refusal_of

FORMATS = ("JPEG", "PNG", "WEBP")
MAX_PIXELS = 25_000_000

MEMORY = 2**30
"""How many bytes decoding may take beyond what the process has when it starts."""

OPEN_FILES = 32


@dataclass(frozen=True)
class EncodedPhoto:
    """The bytes of a photo, what to call it, and whether a grey one keeps its 16 bits."""

    content: bytes
    name: str
    deep: bool = False


@dataclass(frozen=True)
class Pixels:
    """A decoded photo: Pillow's mode, width and height, and the bytes of its pixels."""

    mode: str
    size: tuple[int, int]
    content: bytes

    @staticmethod
    def of(image: Image.Image) -> "Pixels":
        """Return an image's pixels."""
        return Pixels(image.mode, image.size, image.tobytes())

    def image(self) -> Image.Image:
        """Return the pixels as an image."""
        return Image.frombytes(self.mode, self.size, self.content)


class Decoder:
    """Decodes photos."""

    def __init__(self) -> None:
        Image.init()  # plugins are imported before files can no longer be opened
        _limit_resources()
        without_size_warnings().__enter__()  # for the lifetime of the process

    def facts(self) -> None:
        """Return nothing."""

    def answer(
        self, kind: str, asks: Sequence[EncodedPhoto], report: Report
    ) -> list[Pixels | FailedAsk]:
        """Return the pixels of each photo."""
        del kind, report
        return [self._decode(upload) for upload in asks]

    def _decode(self, upload: EncodedPhoto) -> Pixels | FailedAsk:
        try:
            image = photo_of(
                upload.content,
                upload.name,
                formats=FORMATS,
                max_pixels=MAX_PIXELS,
                deep=upload.deep,
            )
        except DMBPError as error:
            return refusal_of(error)
        return Pixels.of(image)


def _limit_resources() -> None:
    """Limit memory and files, where the system can."""
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
