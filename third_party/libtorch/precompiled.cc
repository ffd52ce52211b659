// What g++ reads once for all files that depend on @libtorch: see
// :precompiled_O1 in BUILD. Only what most of them include in any case, since
// to open the result takes longer the more is in it.
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>
