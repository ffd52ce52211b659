"""Checks that engines compute the same."""

import math

import entries


# The allowed relative difference between first losses on GPUs or under autocast. There,
# engines may get other kernels for the same operators, with TF32 or half precision.
COARSE = 1e-2


def check(model, results, exact=True):
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
