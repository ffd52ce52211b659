// Reads and writes state dicts in PyTorch's own files (.pt, .pth).
#pragma once

#include <string>

#include "models/weights/state_dict.h"

namespace gpipe {

// Reads a file that Python's torch.save(dict, path) wrote with PyTorch 1.6 or
// later: a zip archive with a pickle. LibTorch's own reader reads the archive,
// and models/weights/pickle.h reads the pickle without executing anything.
//
// `entry`: where the file has the weights, for example "ema" in
// torch.save({"ema": weights, "net": weights}), "state/ema" or "nets/0" for an
// entry of an entry or an element of a list, and "." for the saved dict itself.
// If `entry` is empty, the weights are the first of these:
// - the entry "state_dict", "model_state_dict", "model" or "module"
//   ({"model": {...}, "rng_state": ..., "args": ...}), searched in the same
//   way,
// - the saved dict, if one of its tensors is called "weight", "bias", or has a
//   dot in its name,
// - its only entry that is a dict of tensors, or else the saved dict.
//
// Other entries may be anything, also objects that
// torch.load(weights_only=True) refuses. Items of the weights that are not
// tensors (numbers, texts, lists) are left out. All tensors are on the CPU,
// whatever their device was. They keep their strides, and tensors that shared
// memory share it again.
//
// LibTorch's reader does not compare checksums: a changed bit in the values of
// a tensor is not detected.
//
// Throws c10::ValueError with the path if:
// - the file cannot be read, or is cut off,
// - the file has the format before 1.6, or torch.save did not write it,
// - the file was written on a big-endian machine,
// - the weights contain a tensor that is not a plain one (sparse, quantized),
// or
//   an object of an unknown class, which the error names,
// - a tensor reaches beyond its storage, or a storage is larger than the file,
// - there is no dict with tensors, or several could be meant (the error lists
//   the entries).
//
// Thread-safe.
StateDict read_torch_file(const std::string& path,
                          const std::string& entry = {});

namespace internal {

// Does the same for tensors that are used for a short time and not changed.
// Their values are those of FileReader::map() (models/weights/files.h), so a
// process reads the weights of its own layers only. A compressed archive is
// read at once. Thread-safe.
StateDict map_torch_file(const std::string& path,
                         const std::string& entry = {});

// Returns whether `path` ends in .pt or .pth.
bool is_torch_file(const std::string& path);

}  // namespace internal

// Writes a file that Python's torch.load(path, weights_only=True) reads as an
// OrderedDict. The file appears only when it is complete
// (models/weights/files.h).
//
// As with torch.save, each storage is written once and whole. Tensors that
// share memory still share it when they are read. A slice of a large tensor
// writes the whole large tensor unless the slice is clone()d. Tensors on other
// devices are written as CPU tensors, and requires_grad is not written.
//
// Throws c10::ValueError with the tensor's name if a tensor is undefined,
// sparse, quantized, or on the meta device (without values), or if two tensors
// of different dtypes share memory, which the format cannot express. Throws
// c10::Error if the file cannot be written.
// Threads: may be called from any thread while no other thread changes the
// tensors.
void write_torch_file(const std::string& path, const StateDict& dict);

}  // namespace gpipe
