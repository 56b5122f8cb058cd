"""Only regular files of a bounded size are read, and messages say what else was met."""

import errno
import os
import socket
from pathlib import Path

import pytest

from dmbp.errors import InputError
from dmbp.files import LONGEST_SHOWN, check_file, printable, read_text, shown


def check(path: Path) -> None:
    check_file(path, what="plan", error=InputError, most_bytes=1000)


def test_what_is_not_a_file_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is at most 107 bytes long
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    Path("text").write_text("a")
    Path("empty").touch()
    with Path("huge").open("wb") as file:
        file.truncate(2**40)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name, sentence in [
            ("missing", "there is no plan missing"),
            ("text/inside", "there is no plan text/inside"),
            (".", r"\. cannot be read: it is a folder, not a plan"),
            ("pipe", "pipe cannot be read: it is a pipe, not a plan"),
            ("socket", "socket cannot be read: it is a socket, not a plan"),
            ("/dev/zero", "/dev/zero cannot be read: it is a device, not a plan"),
            ("loop", "loop cannot be read: it is a symbolic link that leads back to itself"),
            ("a\0b", r"a\\x00b cannot be read: its name contains a NUL character"),
            ("n" * 300, "n…n* cannot be read: its name is too long, file systems allow 255 bytes"),
            ("empty", "empty cannot be read: it is empty"),
            ("huge", "huge cannot be read: it has 1,099,511,627,776 bytes, more than the 1,000"),
        ]:
            with pytest.raises(InputError, match=sentence):
                check(Path(name))
    check(Path("text"))


@pytest.mark.skipif(not Path("/proc/kmsg").exists(), reason="needs Linux")
def test_files_of_the_system_are_not_opened() -> None:
    """Reading the kernel's log waits until there is more of it; such files have no size."""
    with pytest.raises(
        InputError, match=r"/proc/kmsg cannot be read: (it is empty|permission denied)"
    ):
        check(Path("/proc/kmsg"))


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provoked, because root may read everything."""

    def denied(self: Path) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    (tmp_path / "secret").write_text("a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(InputError, match="secret cannot be read: permission denied"):
            check(tmp_path / "secret")
    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(InputError, match="locked cannot be read: permission denied"):
        check(tmp_path / "locked")


def test_text_is_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfcaf\xc3\xa9")  # with a byte order mark, as spreadsheets write it
    assert read_text(path, what="list", error=InputError, most_bytes=99) == "café"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"a\.txt cannot be read: it is not UTF-8 text \(byte 3\)"):
        read_text(path, what="list", error=InputError, most_bytes=99)


def test_names_in_messages() -> None:
    assert printable(os.fsdecode(b"caf\xe9 \xc3\xa9\n\x1b[31m")) == "caf\\udce9 é\\n\\x1b[31m"
    assert printable("a\u00a0b\u3000c") == "a\u00a0b\u3000c"  # spaces of other scripts
    assert len(shown("x" * 5000)) == LONGEST_SHOWN + 1
