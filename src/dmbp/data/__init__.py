"""Where images come from."""

from dmbp.data.photo import photo_paths, read_photo, sample_photos

__all__ = ["photo_paths", "read_photo", "sample_photos"]
