"""Where images come from."""

from dmbp.data.photo import read_photo
from dmbp.data.samples import sample_photos

__all__ = ["read_photo", "sample_photos"]
