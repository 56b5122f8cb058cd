"""Arrays, tables and scans are read as numbers; hostile and damaged files are one sentence."""

import io
import random
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest
from PIL import Image

from dmbp.data import arrays, is_array_file, read_array, read_photo
from dmbp.data.arrays import MAX_VALUES
from dmbp.errors import PhotoError
from dmbp.process import machine_memory
from tests.fuzz.arrays import DEFLATED, PLAIN, deflated_zeros, dicom, nifti


def saved(path: Path, values: object) -> Path:
    numpy.save(path, values)
    return path


@pytest.mark.parametrize("dtype", ["float64", "float16", ">f4", "int16", "uint8", "bool"])
def test_arrays_of_every_type_become_float32(tmp_path: Path, dtype: str) -> None:
    values = (numpy.arange(24).reshape(2, 3, 4) % 2).astype(dtype)
    found = read_array(saved(tmp_path / "a.npy", values)).values
    assert found.dtype == numpy.float32
    assert (found == values.astype(float)).all()
    assert (read_array(saved(tmp_path / "b.npy", values.T)).values == values.T).all()


def header(shape: tuple[int, ...], descr: str = "<f4", extra: bytes = b"") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + extra


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (header((1 << 40, 1 << 20)), "has 1099511627776×1048576 numbers, more than"),
        (header((100, 100), extra=b"1234"), "it ends before its last number"),
        (header((0, 3)), "holds no numbers: its shape is 0×3"),
        (header(()), "holds no numbers: its shape is empty"),
        (header((1,) * 9), "has 9 axes; an input has at most 6"),
        (header((2,), "|O", b"cos\nsystem\n"), "holds Python objects, which may run code"),
        (header((2,), "<c8", b"0" * 16), "holds complex64, not real numbers"),
        (header((1,), "|S4", b"abcd"), "not real numbers"),
        (header((-3, -4)), "holds no numbers"),
        (b"\x93NUMPY\x09\x00", "is no .npy file that can be read"),
        (b"PK\x03\x04 a zip file", "is no .npy file that can be read"),
        (b"\x93NUMPY\x01\x00\x76\x00{'descr': __import__('os')", "is no .npy file"),
        (header((2,), "<f4", b"\x00\x00\xc0\x7f" * 2), "contains NaN or infinity"),
        (header((1,), "<f8", numpy.float64(1e300).tobytes()), "contains NaN or infinity"),
    ],
)
def test_hostile_arrays_are_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(PhotoError, match=sentence):
        read_array(tmp_path / "a.npy")


def test_a_damaged_array_is_read_or_one_sentence(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    numpy.save(buffer, numpy.ones((3, 4), dtype=numpy.float32))
    content, drawn = buffer.getvalue(), random.Random(0)
    refused = 0
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(drawn.randint(1, 4)):
            damaged[drawn.randrange(len(damaged))] = drawn.randrange(256)
        (tmp_path / "a.npy").write_bytes(damaged[: drawn.randint(1, 2 * len(damaged))])
        try:
            assert read_array(tmp_path / "a.npy").values.size <= MAX_VALUES
        except PhotoError as error:
            refused += "\n" not in str(error)
    assert refused > 20


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_tables(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "patients.csv"
    lines = [["age", "weight", "a b"], ["50", "71.5", "-1e-3"], [], ["61", " 80", "0"]]
    path.write_text("\n".join(separator.join(cells) for cells in lines), encoding="utf-8-sig")
    found = read_array(path)
    assert found.names == ("age", "weight", "a b")
    assert numpy.allclose(found.values, [[50, 71.5, -1e-3], [61, 80, 0]])
    path.write_text("1,2\n3,4\n")
    plain = read_array(path)
    assert plain.names is None
    assert plain.values.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("age,sex\n50,male\n", "line 2, column 'sex': 'male' is not a number; write numbers as"),
        ("age,sex\n50,\n", "line 2, column 'sex': it is empty"),
        ("1,2\n3\n", "line 2: 1 cells, but there are 2 columns"),
        ("age,sex\n", "has no rows of numbers"),
        ("\n\n", "has no rows of numbers"),
        ("1,nan\n", "contains NaN or infinity"),
        ('"1\n2', "unexpected end of data"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(PhotoError, match=sentence):
        read_array(tmp_path / "a.csv")


def test_pictures_keep_their_bits_and_channels(tmp_path: Path) -> None:
    deep = numpy.linspace(0, 65535, 32 * 24).reshape(24, 32).astype(numpy.uint16)
    Image.fromarray(deep).save(tmp_path / "a.png")
    assert numpy.allclose(read_array(tmp_path / "a.png").values * 65535, deep, atol=0.01)
    photo = read_photo(tmp_path / "a.png", deep=True)
    assert photo.mode == "F"
    assert numpy.allclose(numpy.asarray(photo) * 65535, deep, atol=0.01)
    assert read_photo(tmp_path / "a.png").mode == "RGB"
    Image.fromarray(deep).save(tmp_path / "a.tif")
    assert numpy.allclose(read_array(tmp_path / "a.tif").values * 65535, deep, atol=0.01)
    four = numpy.random.default_rng(0).integers(0, 256, (24, 32, 4)).astype(numpy.uint8)
    Image.fromarray(four).save(tmp_path / "four.png")
    bands = read_array(tmp_path / "four.png").values
    assert numpy.allclose(bands * 255, numpy.moveaxis(four, -1, 0), atol=1e-3)
    pages = [Image.fromarray(deep + k) for k in range(3)]
    pages[0].save(tmp_path / "stack.tif", save_all=True, append_images=pages[1:])
    assert read_array(tmp_path / "stack.tif").values.shape == (3, 24, 32)


def test_what_is_an_array_file() -> None:
    arrays = ["a.npy", "a.CSV", "scan.nii.gz", "a.nii", "a.dcm"]
    assert all(is_array_file(Path(name)) for name in arrays)
    assert not any(is_array_file(Path(name)) for name in ("a.png", "a.jpg", "a.npz", "a.gz", "a"))
    with pytest.raises(
        PhotoError, match=r"is no input that can be read; files end in \.npy, \.csv"
    ):
        read_array(Path("a.mat"))


def test_files_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "a.npy").mkdir()
    with pytest.raises(PhotoError, match="it is a folder, not a file"):
        read_array(tmp_path / "a.npy")
    with pytest.raises(PhotoError, match="there is no file"):
        read_array(tmp_path / "b.npy")


@pytest.mark.parametrize(("name", "package"), [("a.nii.gz", "nibabel"), ("a.dcm", "pydicom")])
def test_a_missing_package_or_a_damaged_scan_is_one_sentence(
    tmp_path: Path, name: str, package: str
) -> None:
    (tmp_path / name).write_bytes(b"no scan")
    missing = f"is read by the package {package}: pip install {package}"
    with pytest.raises(
        PhotoError, match=missing if find_spec(package) is None else " is no |cannot be"
    ):
        read_array(tmp_path / name)


def test_pages_are_compared_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file may have a first page of 16 × 16 pixels, and later ones that fill the memory."""
    first, large = Image.new("L", (16, 16)), Image.new("L", (3000, 3000))
    first.save(tmp_path / "a.tif", save_all=True, append_images=[large])
    monkeypatch.setattr("dmbp.data.arrays.MAX_VALUES", 600)
    as_numbers = arrays._as_numbers
    monkeypatch.setattr(
        arrays, "_as_numbers", lambda path, page: as_numbers(path, page.resize((16, 16)))
    )
    with pytest.raises(PhotoError, match="has pages of different sizes"):
        read_array(tmp_path / "a.tif")


def test_an_input_that_the_machine_cannot_explain_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path / "a.npy", numpy.zeros((100, 100, 100), numpy.uint8))
    monkeypatch.setattr(arrays, "machine_memory", lambda: 2.0**29)
    with pytest.raises(PhotoError, match=r"may take 0\.6 GB, and this machine has 0\.5: make it"):
        read_array(path)
    assert machine_memory() > 2**28


def test_a_deflated_dicom_file_is_not_unpacked(tmp_path: Path) -> None:
    """Three kilobytes here; three megabytes would take gigabytes."""
    pytest.importorskip("pydicom")
    start, body = dicom(random.Random(0), odd=False, syntax=DEFLATED)
    (tmp_path / "a.dcm").write_bytes(start + deflated_zeros(body, 2**20))
    with pytest.raises(PhotoError, match="is deflated: save it without that compression"):
        read_array(tmp_path / "a.dcm")
    start, body = dicom(random.Random(2), odd=False, syntax=PLAIN)
    (tmp_path / "b.dcm").write_bytes(start + body)
    assert read_array(tmp_path / "b.dcm").values.shape == (12, 10, 11)


@pytest.mark.parametrize("offset", [0.0, 348.0, -5.0, 1e9, float("nan")])
def test_nifti_extensions_are_not_read_without_end(tmp_path: Path, offset: float) -> None:
    """nibabel reads all of them, and a small compressed file may claim gigabytes."""
    pytest.importorskip("nibabel")
    content = nifti(random.Random(3), sides=(3, 4, 5), offset=offset)
    (tmp_path / "a.nii").write_bytes(content)
    with pytest.raises(PhotoError, match="it says that its numbers begin at byte"):
        read_array(tmp_path / "a.nii")


def test_nifti_volumes_have_depth_first(tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    values = numpy.arange(2 * 3 * 4, dtype=numpy.float32).reshape(2, 3, 4)
    nibabel.save(nibabel.Nifti1Image(values, numpy.eye(4)), tmp_path / "a.nii.gz")
    assert (read_array(tmp_path / "a.nii.gz").values == values.T).all()
    four = numpy.stack([values, -values], -1)
    nibabel.save(nibabel.Nifti1Image(four, numpy.eye(4)), tmp_path / "b.nii")
    assert read_array(tmp_path / "b.nii").values.shape == (2, 4, 3, 2)


def test_dicom_images_have_the_scanners_units(tmp_path: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    values = numpy.arange(20, dtype=numpy.int16).reshape(4, 5)
    data = pydicom.dataset.FileDataset("", {}, preamble=b"\0" * 128)
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    data.Rows, data.Columns, data.SamplesPerPixel = 4, 5, 1
    data.BitsAllocated = data.BitsStored = 16
    data.HighBit, data.PixelRepresentation = 15, 1
    data.PhotometricInterpretation = "MONOCHROME2"
    data.RescaleSlope, data.RescaleIntercept = 2, -1000
    data.PixelData = values.tobytes()
    data.save_as(tmp_path / "a.dcm", enforce_file_format=True)
    assert (read_array(tmp_path / "a.dcm").values == 2 * values - 1000).all()
    data.Rows, data.Columns = 60000, 60000
    data.save_as(tmp_path / "b.dcm", enforce_file_format=True)
    with pytest.raises(PhotoError, match="numbers, more than"):
        read_array(tmp_path / "b.dcm")
