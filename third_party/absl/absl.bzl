"""The upstream Abseil labels, each linked with all of the system's libraries.

Each folder in absl/ is a link to labels/, whose BUILD file declares the libraries of the
package that Bazel sees there. A repository rule cannot write these packages:
--override_module needs a folder that has them.
"""

load("@rules_cc//cc:defs.bzl", "cc_library")

_LIBRARIES = {
    "absl/algorithm": ["algorithm", "container"],
    "absl/base": [
        "base",
        "config",
        "core_headers",
        "dynamic_annotations",
        "endian",
        "log_severity",
        "no_destructor",
        "nullability",
        "prefetch",
    ],
    "absl/cleanup": ["cleanup"],
    "absl/container": [
        "btree",
        "fixed_array",
        "flat_hash_map",
        "flat_hash_set",
        "inlined_vector",
        "node_hash_map",
        "node_hash_set",
    ],
    "absl/debugging": ["failure_signal_handler", "stacktrace", "symbolize"],
    "absl/functional": ["any_invocable", "bind_front", "function_ref"],
    "absl/hash": ["hash"],
    "absl/memory": ["memory"],
    "absl/meta": ["type_traits"],
    "absl/numeric": ["bits", "int128"],
    "absl/status": ["status", "statusor"],
    "absl/strings": ["cord", "str_format", "string_view", "strings"],
    "absl/synchronization": ["synchronization"],
    "absl/time": ["time"],
    "absl/types": ["compare", "span"],
    "absl/utility": ["utility"],
}

def absl_libraries():
    """Declares the libraries of this package. All link the same libraries, as needed.

    The headers are in the compiler's own folder (/usr/include). So a missing
    dependency is found only with Abseil from source (MODULE.bazel).
    """
    for name in _LIBRARIES.get(native.package_name(), []):
        cc_library(name = name, deps = ["//:system"])
