"""Where images come from."""

from dmbp.data.photo import read_photo

__all__ = ["read_photo"]
