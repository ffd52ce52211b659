#!/usr/bin/env python3
"""What libgpipe.so exports and needs, by its dynamic symbols and section."""

import re
import shutil
import subprocess
import sys
import unittest

LIBRARY = "tools/cmake/libgpipe.so"

# Names of namespace gpipe: functions, variables, and what a compiler makes of its types.
OURS = re.compile(r"_Z(G[VR]|T[A-Z]|T[hv][n\d_]*_)?Z?N?[KRO]*5gpipe|_Z(GV)?ZN[KRO]*5gpipe")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@unittest.skipUnless(shutil.which("nm") and shutil.which("readelf"), "needs binutils")
class ExportsTest(unittest.TestCase):

    def test_only_names_of_gpipe_are_exported(self):
        names = [line.split()[-1] for line in
                 output("nm", "-D", "--defined-only", LIBRARY).splitlines()]
        self.assertEqual([name for name in names if not OURS.match(name)], [])

    def test_every_library_is_in_it(self):
        names = output("nm", "-DC", "--defined-only", LIBRARY)
        for name in ["gpipe::GPipeImpl::GPipeImpl(", "gpipe::DistributedPipelineImpl::",
                     "gpipe::balancing::plan(", "gpipe::models::transformer(",
                     "gpipe::load_exported(", "gpipe::read_torch_file(",
                     "typeinfo for gpipe::PeerError"]:
            self.assertIn(name, names)

    def test_libtorch_is_needed_by_name(self):
        section = output("readelf", "-d", LIBRARY)
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", section)
        self.assertIn("libtorch_cpu.so", needed)
        self.assertIn("libc10.so", needed)
        # LibTorch brings its own OpenMP, which is not on the path of the loader.
        self.assertEqual([name for name in needed if re.match("lib(gomp|glog|gflags)", name)], [])
        self.assertIn("libgpipe.so.0.2]", section)


if __name__ == "__main__":
    sys.exit(not unittest.main(exit=False).result.wasSuccessful())
