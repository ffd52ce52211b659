// State dicts in PyTorch's own files (.pt, .pth).
#pragma once

#include <string>

#include "weights/state_dict.h"

namespace gpipe {

// Reads what Python's torch.save(dict, path) has written since PyTorch 1.6: a
// zip archive, taken apart by LibTorch's own reader, with a pickle, which
// weights/pickle.h reads without executing anything.
//
// The dict is the one saved, if it has tensors, or else its entry "state_dict"
// or "model" ({"state_dict": {...}, "epoch": 3}). Entries that are not tensors
// are left out. Tensors are on the CPU, whatever device they came from, have
// the strides that they had, and share memory where they did.
//
// LibTorch's reader does not compare checksums: a changed bit in the values of
// a tensor is not noticed.
//
// Errors: c10::ValueError, with the path: the file cannot be read or is cut
// off; is of the format before 1.6, or not from torch.save; was written on a
// big-endian machine; holds objects that a state dict has not, which it names;
// has tensors that reach beyond their storage, or a storage that is larger than
// the file; or has no dict with tensors, and then says what there is.
// Threads: any.
StateDict read_torch_file(const std::string& path);

// Writes a file that Python's torch.load(path, weights_only=True) reads as an
// OrderedDict, and that appears when it is complete (weights/atomic_file.h).
//
// As with torch.save, storages are written whole and once: tensors that share
// memory still do when they are read, and a slice of a large tensor brings the
// large one along unless it is clone()d. Tensors on other devices are written
// as if they were on the CPU, and what requires a gradient as if it did not.
//
// Errors: c10::ValueError, naming the tensor, for one that is undefined,
// sparse, quantized, or without values (on the meta device), and for two of
// different dtypes that share memory, which the format cannot express;
// c10::Error if the file cannot be written.
// Threads: any, while no other one changes the tensors.
void write_torch_file(const std::string& path, const StateDict& dict);

}  // namespace gpipe
