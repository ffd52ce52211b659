// The version of gpipe. CHANGELOG.md says what changed, and what may change
// next.
#pragma once

// The version as text. //tools:sources_test compares it with MODULE.bazel.
#define GPIPE_VERSION "0.2.0"

// The first number, for the preprocessor.
#define GPIPE_VERSION_MAJOR 0
// The second number.
#define GPIPE_VERSION_MINOR 2
// The third number.
#define GPIPE_VERSION_PATCH 0
