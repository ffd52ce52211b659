// Headers for tests of files with tensors. See tensors.cc.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
