// Headers for tests without LibTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
