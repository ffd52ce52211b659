// LibTorch's headers for files with tensors and no modules. Opens in a third of
// the time of modules.cc.
#include <ATen/Functions.h>
