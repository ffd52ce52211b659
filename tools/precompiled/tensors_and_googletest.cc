// For tests. See tensors.cc.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
