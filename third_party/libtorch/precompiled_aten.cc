// As precompiled.cc, for what has no modules: half the time to open it.
#include <ATen/Functions.h>
