"""Reads photos and datasets.

    photo.py           one photo file as an upright RGB image; scikit-image's sample photos
    arrays.py          inputs that are no photos: .npy, tables, signals, scans, images of many bits
    sample.py          a labelled photo of a dataset; datasets in folders or in a CSV manifest
    paper_datasets.py  PASCAL VOC with its bounding boxes, and ImageNet's validation set
    dataset.py         `read_dataset`, and the table of all kinds of dataset

To add a kind of dataset, write a function that takes a path and returns a list of `Sample`, and add
it to `READERS` in `dataset.py`.
"""

from dmbp.data.arrays import ArrayFile, is_array_file, read_array
from dmbp.data.photo import check_photo, photo_paths, read_photo, sample_photos

__all__ = [
    "ArrayFile",
    "check_photo",
    "is_array_file",
    "photo_paths",
    "read_array",
    "read_photo",
    "sample_photos",
]
