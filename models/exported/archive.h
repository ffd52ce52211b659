// The archive that Python's torch.export.save writes, and the weights in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/exported/program.h"
#include "models/weights/zip.h"

namespace gpipe::exported {

// The records of a .pt2 file: the program as JSON, and one record for each
// weight. Nothing is unpickled.
class Archive : public internal::ZipArchive {
 public:
  // Throws c10::ValueError, without the path, if the file is not such an
  // archive.
  explicit Archive(const std::string& path);

  // Returns the name of the exported program, "model" unless it was packaged
  // under another one. Its record is "models/NAME.json".
  const std::string& model() const { return model_; }

  // Returns the CRC-32C of the names, sizes and CRC-32s of the records with
  // weights and constants, which the directory has.
  uint32_t weights_checksum() const { return weights_checksum_; }

 private:
  uint32_t weights_checksum_;
  std::string model_;
};

// Returns the weights and constants of an archive, without their values.
// Weights with equal bytes, sizes and strides are tied, except weights of the
// meta device, which have no bytes. Other weights with some equal bytes are
// overlapping. Throws c10::ValueError if an entry is
// damaged, reaches beyond its record, or is pickled.
std::vector<Weight> read_weight_list(Archive& archive);

// Returns a tensor on the CPU with the values of a weight. It owns its memory.
// Under a MetaGuard it is on the meta device, and no values are read.
// Throws c10::ValueError if the archive lacks the record, if the record is too
// small, or if the weight has no values and there is no MetaGuard.
at::Tensor read_weight(Archive& archive, const Weight& weight);

// Returns a tensor with the dtype and the sizes of a weight, on the CPU or,
// under a MetaGuard, on the meta device. Its elements are NaN, or 0 if they are
// integers, so that a weight that gets no values later is noticed.
at::Tensor weight_without_values(const Weight& weight);

}  // namespace gpipe::exported
