"""A test that is always built and run with sanitizers.

It needs no --config, so that every run of //... includes these tests.
"""

_COPT = "//command_line_option:copt"
_LINKOPT = "//command_line_option:linkopt"
_PRECOMPILE = "//tools/precompiled:compiler"

# The options of .bazelrc, which explains them.
_COPTS = ["-O1", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]

# Macros of GCC that clang lacks; sources ask for them.
_MACROS = {
    "address": "-D__SANITIZE_ADDRESS__=1",
    "thread": "-D__SANITIZE_THREAD__=1",
}

# quarantine_size_mb: ASan reuses freed memory after 16 MB instead of 256 MB. With 256 MB
# a fuzz target would get new pages all the time.
_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:quarantine_size_mb=16",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:ignore_noninstrumented_modules=1",
}

def _with_sanitizers(settings, attr):
    copts, linkopts = settings[_COPT], settings[_LINKOPT]
    precompile = settings[_PRECOMPILE]

    # A --config with a sanitizer takes precedence, since two may not be compatible.
    if attr.sanitizers and not [copt for copt in copts if copt.startswith("-fsanitize=")]:
        flags = ["-fsanitize=" + name for name in attr.sanitizers]
        copts = copts + _COPTS + flags + [_MACROS[name] for name in attr.sanitizers if name in _MACROS]
        linkopts = linkopts + flags
        if "undefined" in attr.sanitizers:
            # Needed because Bazel links with clang, not clang++.
            linkopts = linkopts + ["-fsanitize-link-c++-runtime"]

        # There are too few files for a precompiled header with these options.
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
    doc = """Builds `test` and everything that it links with `sanitizers`, and runs it.

Prebuilt libraries (LibTorch, the system's libraries) are used as they are. With a
--config that has a sanitizer, that sanitizer is used instead.""",
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
            doc = "Names as in the compiler's -fsanitize=. Without any, the test is built as others.",
            mandatory = True,
        ),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
    test = True,
)
