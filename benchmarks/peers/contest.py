"""Runs engines that take turns with their steps, each in a process of its own, and
checks that they compute the same."""

import ctypes
import functools
import math
import os
import select
import signal
import subprocess
import tempfile

import entries

SECONDS_TO_WAIT = 600

# The allowed relative difference between first losses on GPUs or under autocast. There,
# engines may get other kernels for the same operators, with TF32 or half precision.
COARSE = 1e-2


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def end_with(parent):
    """Lets the kernel kill this process as soon as `parent`, which started it, ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before that
        os._exit(1)


class Failure(Exception):
    """The error of an engine that gave no answer; the text says why."""


class Contestant:
    """A process that answers each line with a line; see worker.py."""

    def __init__(self, command, environ):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            start_new_session=True,  # so that close() can kill its children, too
            # A timeout that kills this program must leave no engine on a GPU.
            preexec_fn=functools.partial(end_with, os.getpid()),
        )

    def ask(self, line):
        """Sends a line and returns the words of the answer. Raises Failure."""
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise Failure(self._why("ended")) from error
        return self.answer()

    def answer(self):
        """Returns the words of the next line. Raises Failure if there is none."""
        ready = select.select([self.process.stdout], [], [], SECONDS_TO_WAIT)[0]
        if not ready:
            raise Failure(self._why(f"gave no answer in {SECONDS_TO_WAIT} s"))
        line = self.process.stdout.readline()
        if not line:
            raise Failure(self._why("ended"))
        return line.split()

    def _why(self, what):
        """Returns `what` with the last line of the process's stderr."""
        self.errors.seek(0)
        told = self.errors.read().decode(errors="replace").strip().splitlines()
        return what + (": " + told[-1] if told else "")

    def close(self):
        """Ends the process: waits 10 s for it to exit, then kills it."""
        try:
            self.process.stdin.close()
            self.process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Result:
    """The result of an engine: lists of seconds, CPU seconds and losses per round."""

    def __init__(self):
        self.seconds, self.cpu_seconds, self.losses = [], [], []
        self.peak_mib = None
        self.reserved_mib = None  # on GPUs
        self.parameters = self.layers = self.version = None
        self.error = None


def compete(commands, rounds, warm_up, check, say, seconds=math.inf, together=True):
    """Runs all engines and returns a Result for each key.

    Starts a process per engine. In each round each engine runs one step. The order
    rotates by one in each round, so that the first engine changes. The seconds of the
    first `warm_up` rounds are dropped; their losses stay. If an engine fails, its
    `error` is set and it takes no further part.

    `commands`: key to (command, environ).
    `check`: called with the results after the start and after the first round.
    Returns a dictionary of key to error; the engines in it are dropped, too.
    `say`: called with a text for people in each round.
    `seconds`: an engine runs no further step after this many measured seconds.
    `together`: if False, an engine starts when the one before has run all its rounds.
    """
    competition = _Competition(check, say)
    if together:
        competition.run(commands, rounds, warm_up, seconds)
    else:
        for key, command in commands.items():
            competition.run({key: command}, rounds, warm_up, seconds)
    return competition.results


class _Competition:
    """The results so far, and the engines that run."""

    def __init__(self, check, say):
        self.check, self.say = check, say
        self.results, self.running = {}, {}

    def run(self, commands, rounds, warm_up, seconds):
        """Runs these engines from their start to their end; see compete()."""
        try:
            self._start(commands)
            self._judge()
            for turn in range(warm_up + rounds):
                order = [key for key in self.running if self._measured(key, warm_up) < seconds]
                if not order:
                    break
                self.say(f"{self._names(commands)}round {turn - warm_up + 1} of {rounds}")
                first = turn % len(order)
                for key in order[first:] + order[:first]:
                    self._attempt(key, _step)
                if turn == 0:
                    self._judge()
            for key in list(self.running):
                self._attempt(key, _end)
        finally:
            for contestant in self.running.values():
                contestant.close()
            self.running.clear()
        for key in commands:
            result = self.results[key]
            del result.seconds[:warm_up], result.cpu_seconds[:warm_up]

    def _start(self, commands):
        for key, (command, environ) in commands.items():
            self.results[key] = Result()
            try:
                self.running[key] = Contestant(command, environ)
            except OSError as error:
                self.results[key].error = str(error)
        # All load their libraries at the same time, which takes seconds.
        for key in list(self.running):
            self._attempt(key, _begin)

    def _measured(self, key, warm_up):
        return sum(self.results[key].seconds[warm_up:])

    @staticmethod
    def _names(commands):
        return f"{next(iter(commands))}, " if len(commands) == 1 else ""

    def _attempt(self, key, work):
        try:
            work(self.results[key], self.running[key])
        except (Failure, ValueError) as failure:
            self._drop(key, str(failure))

    def _judge(self):
        for key, error in self.check(self.results).items():
            self._drop(key, error)

    def _drop(self, key, error):
        self.results[key].error = error
        if key in self.running:
            self.running.pop(key).close()


def _begin(result, contestant):
    words = contestant.answer()
    if len(words) != 4 or words[0] != "READY":
        raise Failure(f"began with {' '.join(words)!r}")
    result.parameters, result.layers = int(words[1]), int(words[2])
    result.version = words[3]


def _step(result, contestant):
    seconds, cpu_seconds, loss = map(float, contestant.ask("step"))
    result.seconds.append(seconds)
    result.cpu_seconds.append(cpu_seconds)
    result.losses.append(loss)


def _end(result, contestant):
    result.peak_mib, *reserved = map(float, contestant.ask("peak"))
    result.reserved_mib = reserved[0] if reserved else None


def disagreements(model, results, exact=True):
    """Returns errors of engines that differ. All get one, as none is the reference.

    `exact`: whether all run in float32 on the CPU.
    """
    taking_part = {e: result for e, result in results.items() if not result.error}
    tolerance = entries.MODELS[model].tolerance
    if not exact:
        tolerance = max(tolerance, COARSE)
    return {**check_models(taking_part), **check_losses(taking_part, tolerance)}


def check_models(results):
    """Checks that all engines have the same numbers of parameters and layers."""
    sizes = {
        engine: f"{result.parameters} parameters in {result.layers} layers"
        for engine, result in results.items()
    }
    if len(set(sizes.values())) < 2:
        return {}
    return {e: f"{size}; not the same for all engines" for e, size in sizes.items()}


def check_losses(results, tolerance):
    """Checks that all engines that split alike have the same first loss."""
    by_split = {}
    for engine, result in results.items():
        if result.losses:
            split = entries.ENGINES[engine].split
            by_split.setdefault(split, {})[engine] = result.losses[0]
    errors = {}
    for losses in by_split.values():
        errors.update(_compare(losses, tolerance))
    return errors


def _compare(losses, tolerance):
    low, high = min(losses.values(), default=0), max(losses.values(), default=0)
    # Compares each loss, since a NaN is neither the minimum nor the maximum.
    if all(math.isclose(low, loss, rel_tol=tolerance) for loss in losses.values()):
        return {}
    return {
        engine: f"first loss {loss:.6g}; of all engines {low:.6g} to {high:.6g}"
        for engine, loss in losses.items()
    }
