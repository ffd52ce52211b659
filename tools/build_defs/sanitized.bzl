"""A test that is built and run with sanitizers, whatever the rest is built with.

In //... without a --config, so that they are part of every run of the tests.
"""

_COPT = "//command_line_option:copt"
_LINKOPT = "//command_line_option:linkopt"
_PRECOMPILE = "//tools/precompiled:compiler"

# As in .bazelrc, where the reasons are.
_COPTS = ["-O1", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]

# quarantine_size_mb: memory that is given back is used again after so much, not
# after 256 MB; a fuzz target would get new pages all the time.
_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:quarantine_size_mb=16",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:ignore_noninstrumented_modules=1",
}

def _with_sanitizers(settings, attr):
    copts, linkopts = settings[_COPT], settings[_LINKOPT]
    precompile = settings[_PRECOMPILE]

    # Of a --config: two of them need not get along.
    if not [copt for copt in copts if copt.startswith("-fsanitize=")]:
        flags = ["-fsanitize=" + name for name in attr.sanitizers]
        copts = copts + _COPTS + flags
        linkopts = linkopts + flags
        if "undefined" in attr.sanitizers:
            # Bazel links with clang, not clang++.
            linkopts = linkopts + ["-fsanitize-link-c++-runtime"]

        # Of too few files to be worth a precompiled header with these options.
        precompile = "none"
    return {_COPT: copts, _LINKOPT: linkopts, _PRECOMPILE: precompile}

def _impl(ctx):
    info = ctx.attr.test[0][DefaultInfo]
    executable = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(
        output = executable,
        target_file = info.files_to_run.executable,
        is_executable = True,
    )
    return [
        DefaultInfo(
            executable = executable,
            runfiles = ctx.runfiles([executable]).merge(info.default_runfiles),
        ),
        testing.TestEnvironment(_ENVIRONMENT),
    ]

sanitized_test = rule(
    implementation = _impl,
    doc = """Runs `test`, which is built with `sanitizers`, and so is all that it
is linked with but for what is prebuilt (LibTorch, the system's libraries).

With a --config of a sanitizer it is built with that one instead.""",
    attrs = {
        "test": attr.label(
            mandatory = True,
            executable = True,
            cfg = transition(
                implementation = _with_sanitizers,
                inputs = [_COPT, _LINKOPT, _PRECOMPILE],
                outputs = [_COPT, _LINKOPT, _PRECOMPILE],
            ),
        ),
        "sanitizers": attr.string_list(
            doc = "As in gcc's -fsanitize=.",
            mandatory = True,
        ),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
    test = True,
)
