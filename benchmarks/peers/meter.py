"""Measurements of the time and the memory of this process."""

import ctypes
import time

CLEAR_PEAK = "5"  # see proc(5)


def status(field):
    """Returns a field of /proc/self/status in MiB."""
    with open("/proc/self/status", encoding="ascii") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


class Memory:
    """The peak memory of this process in MiB, above the memory at construction.

    Returns freed memory to the system first; see process_memory.h.
    """

    def __init__(self):
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write(CLEAR_PEAK)
        self.start = status("VmRSS")

    def peak(self):
        return status("VmHWM") - self.start


class Stopwatch:
    def __init__(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def elapsed(self):
        """Returns the wall seconds and the CPU seconds of all threads."""
        return time.perf_counter() - self.wall, time.process_time() - self.cpu
