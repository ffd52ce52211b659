"""Upstream's Abseil labels, each on all of the system's shared libraries."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def absl_libraries(names):
    """Declares one library per name; all link the same, as needed.

    The headers are the compiler's own (/usr/include), so that a missing
    dependency is noticed only against Abseil from source (MODULE.bazel).
    """
    for name in names:
        cc_library(name = name, deps = ["//:system"])
