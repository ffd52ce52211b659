// The version of gpipe. CHANGELOG.md says what changed, and what may change
// next.
#pragma once

// Numbers for the preprocessor. //tools:sources_test compares them with
// MODULE.bazel.
#define GPIPE_VERSION_MAJOR 0
#define GPIPE_VERSION_MINOR 2
#define GPIPE_VERSION_PATCH 0

// The same as text.
#define GPIPE_VERSION "0.2.0"
