"""Measurements of the time and the memory of a step, on the CPU or on GPUs."""

import ctypes
import time

import torch

CLEAR_PEAK = "5"  # see proc(5)
MIB = 2**20


def gpus_of(devices):
    """Returns the devices that are not the CPU, each once."""
    return list(dict.fromkeys(each for each in devices if each.type != "cpu"))


def status(field):
    """Returns a field of /proc/self/status in MiB."""
    with open("/proc/self/status", encoding="ascii") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


class ProcessMemory:
    """The peak memory of this process in MiB, above the memory at construction.

    Returns freed memory to the system first; see step_meter.h.
    """

    def __init__(self):
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write(CLEAR_PEAK)
        self.start = status("VmRSS")

    def peak(self):
        return [status("VmHWM") - self.start]


class DeviceMemory:
    """The peak memory of GPUs in MiB, from construction on: allocated and reserved.

    The figures are those of PyTorch's allocator and contain parameters and gradients.
    """

    def __init__(self, gpus):
        self.gpus = gpus
        for gpu in gpus:
            torch.cuda.reset_peak_memory_stats(gpu)

    def peak(self):
        allocated = sum(torch.cuda.max_memory_allocated(gpu) for gpu in self.gpus)
        reserved = sum(torch.cuda.max_memory_reserved(gpu) for gpu in self.gpus)
        return [allocated / MIB, reserved / MIB]


def memory_of(devices):
    """Starts to measure the memory of the devices, or of the process on the CPU."""
    gpus = gpus_of(devices)
    return DeviceMemory(gpus) if gpus else ProcessMemory()


class Stopwatch:
    """Times the work of devices: with events on GPUs, with the clock on the CPU.

    An event is on the current stream of its device. With several GPUs, the time is that
    of the slowest one.
    """

    def __init__(self, devices):
        self.gpus = gpus_of(devices)
        self._wait()
        self.starts = [self._event(gpu) for gpu in self.gpus]
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def elapsed(self):
        """Returns the seconds and the CPU seconds of all threads. Waits for the GPUs."""
        ends = [self._event(gpu) for gpu in self.gpus]
        self._wait()
        wall, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        if self.gpus:
            pairs = zip(self.starts, ends)
            wall = max(start.elapsed_time(end) for start, end in pairs) / 1e3
        return wall, cpu

    def _wait(self):
        for gpu in self.gpus:
            torch.cuda.synchronize(gpu)

    @staticmethod
    def _event(gpu):
        with torch.cuda.device(gpu):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return event
