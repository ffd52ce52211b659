#!/usr/bin/env python3
"""Makes a copy of NCCL's library that has the code for one GPU architecture only.

    tools/slim_nccl.py libnccl.so.2 OUTPUT [--arch=90]

All other GPU code becomes zeros, so that the copy, of the same size, compresses to a
seventh. Offsets stay, so that the library loads as before. tools/pack.sh --nccl uses it.

The GPU code of a library is in fat binaries. Each has a header of 16 bytes: a magic
number, a version, the size of the header, and the size of all entries. An entry has a
header with its kind, the sizes of the header and of the code, and the architecture.
"""

import argparse
import pathlib
import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)
HEADER = struct.Struct("<4xHHQ")  # version, size of the header, size of the entries
VERSION = (1, HEADER.size)
ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, sizes of header and code, architecture
PTX, MACHINE_CODE = 1, 2


def slim(data, arch):
    """Overwrites the code for other architectures in `data`, a bytearray.

    Returns the bytes of code that are kept and overwritten. Raises ValueError if there
    is no code for `arch`, or if an entry has an unknown kind.
    """
    kept = dropped = at = 0
    while (at := data.find(MAGIC, at)) >= 0:
        *version, size = HEADER.unpack_from(data, at)
        if tuple(version) != VERSION:  # other data with these four bytes
            at += len(MAGIC)
            continue
        entry = at + HEADER.size
        at = entry + size
        while entry < at:
            kind, _, header, code, entry_arch = ENTRY.unpack_from(data, entry)
            if kind not in (PTX, MACHINE_CODE):
                raise ValueError(f"the entry at byte {entry} has the unknown kind {kind}")
            if kind == MACHINE_CODE and entry_arch == arch:
                kept += code
            else:
                data[entry + header:entry + header + code] = bytes(code)
                dropped += code
            entry += header + code
    if not kept:
        raise ValueError(f"there is no code for sm_{arch}")
    return kept, dropped


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--arch", type=int, default=90, help="default: 90 (H100, H200)")
    flags = parser.parse_args()
    data = bytearray(flags.library.read_bytes())
    try:
        kept, dropped = slim(data, flags.arch)
    except ValueError as error:
        sys.exit(f"slim_nccl: {flags.library}: {error}")
    flags.output.write_bytes(data)
    print(f"{flags.output}: {kept} bytes of code for sm_{flags.arch}, {dropped} zeroed")


if __name__ == "__main__":
    main()
