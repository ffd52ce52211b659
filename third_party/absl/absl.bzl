"""The upstream Abseil labels, each linked with all of the system's libraries."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def absl_libraries(names):
    """Declares one library per name. All link the same libraries, as needed.

    The headers are in the compiler's own folder (/usr/include). So a missing
    dependency is found only with Abseil from source (MODULE.bazel).
    """
    for name in names:
        cc_library(name = name, deps = ["//:system"])
