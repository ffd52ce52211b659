"""Tests in Python, without a rule set for Python.

    load("//tools/build_defs:python.bzl", "python_test")

py_test is built into Bazel 4 to 7, and to be loaded from rules_python in later
ones, which Bazel 4 cannot read. All that our tests need is python3 (3.9 or later,
see bazelw) and the files beside them.
"""

def _python_test_impl(ctx):
    script = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.write(
        script,
        "#!/bin/sh\nexec python3 -B '{}' \"$@\"\n".format(ctx.file.main.short_path),
        is_executable = True,
    )
    files = [ctx.file.main] + ctx.files.srcs + ctx.files.data
    return [DefaultInfo(executable = script, runfiles = ctx.runfiles(files = files))]

python_test = rule(
    implementation = _python_test_impl,
    test = True,
    attrs = {
        "data": attr.label_list(allow_files = True, doc = "what it reads; `args` may name it by $(rootpaths ...)"),
        "main": attr.label(allow_single_file = [".py"], mandatory = True, doc = "what python3 runs"),
        "srcs": attr.label_list(allow_files = [".py"], doc = "modules in the same folder that it imports"),
    },
    doc = "Passes if `main` ends with 0. Its modules are found since they lie beside it.",
)
