// For tests without LibTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
