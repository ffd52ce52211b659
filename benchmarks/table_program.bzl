"""The programs of the tables of tables.h."""

load("//tools/build_defs:gpipe.bzl", "gpipe_cc_binary")

def table_program(name):
    """Declares the program that prints the table of [name]_benchmark() of tables.h.

    Args:
      name: the name of the program.
    """
    gpipe_cc_binary(
        name = name,
        srcs = ["table_program.cc"],
        local_defines = ["TABLE=%s_benchmark" % name],
        precompiled = True,
        deps = [
            ":tables",
            "//benchmarks/harness",
        ],
    )
