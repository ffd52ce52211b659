#!/usr/bin/env python3
"""Makes small libraries with fat binaries, and slims them."""

import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import slim_nccl

SCRIPT = pathlib.Path(__file__).parent / "slim_nccl.py"


def entry(kind, arch, code):
    """Returns an entry whose header is longer than what the script reads of it."""
    return struct.pack("<HHIQIIII", kind, 0x101, 40, len(code), 0, 0, 0, arch) + b"h" * 8 + code


def fat_binary(*entries, version=1):
    size = sum(map(len, entries))
    return struct.pack("<IHHQ", 0xBA55ED50, version, 16, size) + b"".join(entries)


class SlimNcclTest(unittest.TestCase):

    def library(self, old=b"old"):
        return (b"host code" + fat_binary(entry(2, 80, old), entry(2, 90, b"hopper")) +
                b"more" + fat_binary(entry(2, 90, b"sums"), entry(1, 90, old)) + b"end")

    def test_the_code_of_one_architecture_is_kept_in_its_place(self):
        data = bytearray(self.library())
        self.assertEqual(slim_nccl.slim(data, 90), (10, 6))
        self.assertEqual(bytes(data), self.library(old=b"\0\0\0"))

    def test_other_data_with_the_magic_number_stays(self):
        other = fat_binary(entry(2, 80, b"data"), version=7)
        data = bytearray(other + self.library() + other)
        slim_nccl.slim(data, 90)
        self.assertEqual(bytes(data), other + self.library(old=b"\0\0\0") + other)

    def test_a_library_without_the_architecture_is_refused(self):
        with self.assertRaisesRegex(ValueError, "^there is no code for sm_100$"):
            slim_nccl.slim(bytearray(self.library()), 100)

    def test_an_unknown_kind_of_entry_is_refused(self):
        data = bytearray(b"12345678" + fat_binary(entry(3, 90, b"new")))
        with self.assertRaisesRegex(ValueError, "entry at byte 24 has the unknown kind 3"):
            slim_nccl.slim(data, 90)

    def test_the_program_writes_the_library(self):
        with tempfile.TemporaryDirectory() as scratch:
            library, output = (pathlib.Path(scratch) / name for name in ("full", "slim"))
            library.write_bytes(self.library())
            command = [sys.executable, str(SCRIPT), str(library), str(output)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout, f"{output}: 10 bytes of code for sm_90, 6 zeroed\n")
            self.assertEqual(output.read_bytes(), self.library(old=b"\0\0\0"))
            done = subprocess.run([*command, "--arch=70"], capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stderr,
                             f"slim_nccl: {library}: there is no code for sm_70\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
