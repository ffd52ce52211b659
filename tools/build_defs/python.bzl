"""Tests in Python, without a rule set for Python.

    load("//tools/build_defs:python.bzl", "python_test")

py_test is built into Bazel 4 to 7. Later versions need rules_python, which Bazel 4
cannot read. The tests of this repository need only python3 (3.9 or later, see bazelw)
and the files in their folders.
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
        "data": attr.label_list(allow_files = True, doc = "files that it reads; `args` can name them with $(rootpaths ...)"),
        "main": attr.label(allow_single_file = [".py"], mandatory = True, doc = "the script that python3 runs"),
        "srcs": attr.label_list(allow_files = [".py"], doc = "modules of the same folder that it imports"),
    },
    doc = "A test that passes if `main` ends with exit status 0.",
)
