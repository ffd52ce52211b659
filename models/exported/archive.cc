#include "models/exported/archive.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "gpipe/base/crc32c.h"
#include "gpipe/base/text.h"
#include "models/exported/schema.h"
#include "models/weights/formats.h"

namespace gpipe::exported {

// ---- Records

namespace {

using internal::in_quotes;

// Returns `path` after a check of the first bytes.
const std::string& checked_start(const std::string& path) {
  internal::check_zip_start(internal::read_start(path, 4), "torch.export.save");
  return path;
}

// Returns the name of the only program in the archive.
std::string find_model(const std::vector<internal::ZipRecord>& records) {
  constexpr std::string_view kBegin = "models/", kEnd = ".json";
  std::vector<std::string> names;
  for (const internal::ZipRecord& each : records) {
    std::string_view name = each.name;
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) continue;
    name.remove_prefix(kBegin.size());
    if (name.size() <= kEnd.size()) continue;
    name.remove_suffix(kEnd.size());
    names.emplace_back(name);
  }
  TORCH_CHECK_VALUE(!names.empty(),
                    "has no record models/NAME.json, so it is no exported "
                    "program; write it with torch.export.save");
  TORCH_CHECK_VALUE(names.size() == 1, "has ", names.size(),
                    " programs, such as ", in_quotes(names[0]), " and ",
                    in_quotes(names[1]),
                    "; only one is read: save each in its own file");
  return names[0];
}

uint32_t checksum_of_weights(const std::vector<internal::ZipRecord>& records) {
  uint32_t sum = 0;
  const auto add = [&](const auto& number) {
    sum = internal::crc32c(&number, sizeof(number), sum);
  };
  for (const internal::ZipRecord& each : records) {
    if (!each.name.starts_with("data/weights/") &&
        !each.name.starts_with("data/constants/")) {
      continue;
    }
    sum = internal::crc32c(each.name.data(), each.name.size(), sum);
    add(each.size);
    add(each.crc32);
  }
  return sum;
}

}  // namespace

Archive::Archive(const std::string& path)
    : ZipArchive(checked_start(path), "is damaged: "),
      weights_checksum_(checksum_of_weights(directory())) {
  // An exported program says that it is one; a file of torch.save does not.
  const bool is_exported =
      has("archive_format") && text("archive_format") == "pt2";
  TORCH_CHECK_VALUE(
      is_exported || !has("constants.pkl"),
      "is an archive of TorchScript, as torch.jit.save writes in Python and "
      "torch::save in C++. Export the model again in Python with "
      "torch.export.save. To use its weights alone, save them in Python: "
      "torch.save(torch.jit.load(path).state_dict(), path)");
  TORCH_CHECK_VALUE(is_exported,
                    "is a zip archive, but not from torch.export.save (record "
                    "'archive_format' is not 'pt2')");
  check_byte_order();
  model_ = find_model(directory());
}

// ---- Weights

namespace {

// Returns numbers >= 0.
std::vector<int64_t> numbers_in(const Json& json) {
  TORCH_CHECK_VALUE(list(json).size() <= internal::kMaxDimensions, "has ",
                    json.size(), " dimensions; at most ",
                    internal::kMaxDimensions, " are read");
  std::vector<int64_t> numbers;
  for (const Json& each : json) {
    numbers.push_back(integer(field(each, "as_int")));
    TORCH_CHECK_VALUE(numbers.back() >= 0, "has a size or a stride of ",
                      numbers.back());
  }
  return numbers;
}

// Returns the bytes that a weight reaches into its record. Throws if the number
// does not fit into 64 bits.
uint64_t bytes_of(const Weight& weight) {
  if (std::ranges::count(weight.sizes, 0) > 0) return 0;
  const auto elements =
      internal::extent_of(weight.offset, weight.sizes, weight.strides);
  const auto bytes =
      elements ? internal::bytes_of({*elements}, weight.dtype) : std::nullopt;
  TORCH_CHECK_VALUE(bytes, "has sizes and strides beyond 64 bits");
  return *bytes;
}

Weight read_entry(const std::string& folder, const std::string& name,
                  const Json& entry) {
  TORCH_CHECK_VALUE(!boolean(field(entry, "use_pickle")),
                    "is pickled, and pickles are not read; export plain "
                    "tensors instead of tensor subclasses and custom objects");
  Weight weight;
  weight.name = name;
  weight.record = folder + text(field(entry, "path_name"));
  weight.is_parameter = boolean(field(entry, "is_param"));
  const Json* meta = find_field(entry, "tensor_meta");
  TORCH_CHECK_VALUE(meta, "is no tensor; only tensors can be read");
  weight.dtype = dtype_of(integer(field(*meta, "dtype")));
  check_layout(integer(field(*meta, "layout")));
  weight.sizes = numbers_in(field(*meta, "sizes"));
  weight.strides = numbers_in(field(*meta, "strides"));
  TORCH_CHECK_VALUE(weight.sizes.size() == weight.strides.size(), "has ",
                    weight.sizes.size(), " sizes, but ", weight.strides.size(),
                    " strides");
  weight.offset = integer(field(field(*meta, "storage_offset"), "as_int"));
  TORCH_CHECK_VALUE(weight.offset >= 0, "has an offset of ", weight.offset);
  weight.requires_grad = boolean(field(*meta, "requires_grad"));
  if (const Json* device = find_field(*meta, "device")) {
    weight.has_values = text(field(*device, "type")) != "meta";
  }
  return weight;
}

void check_fits(Archive& archive, const Weight& weight) {
  const uint64_t needed = bytes_of(weight);
  // PyTorch writes no record for a tensor without elements.
  if (needed == 0 || !weight.has_values) return;
  const uint64_t there = archive.size(weight.record);
  TORCH_CHECK_VALUE(needed <= there, "needs ", needed, " bytes, but record ",
                    in_quotes(weight.record), " has ", there);
}

// Adds the entries of a list, in the order of their names, so that the first of
// tied weights does not depend on the file.
void add_entries(const Json& list, const std::string& folder, Archive& archive,
                 std::vector<Weight>& weights) {
  std::map<std::string, const Json*> entries;
  for (const auto& [name, entry] : object(field(list, "config")).items()) {
    entries.emplace(name, &entry);
  }
  for (const auto& [name, entry] : entries) {
    try {
      weights.push_back(read_entry(folder, name, *entry));
      check_fits(archive, weights.back());
    } catch (c10::Error& error) {
      error.add_context("in the weight " + in_quotes(name));
      throw;
    }
  }
}

void find_ties(std::vector<Weight>& weights) {
  std::map<std::tuple<std::string, int64_t, std::vector<int64_t>,
                      std::vector<int64_t>, c10::ScalarType, bool>,
           int>
      first_with;
  for (std::size_t k = 0; k < weights.size(); ++k) {
    Weight& weight = weights[k];
    weight.tied_to = static_cast<int>(k);
    // Tensors without elements have no record, and all name the same one.
    if (!weight.has_values || bytes_of(weight) == 0) continue;
    const auto found = first_with.try_emplace(
        {weight.record, weight.offset, weight.sizes, weight.strides,
         weight.dtype, weight.requires_grad},
        weight.tied_to);
    weight.tied_to = found.first->second;
  }
}

// Returns the part of `record`, one element for each byte, that a weight has:
// all bytes from the first to the last one if its elements share memory.
at::Tensor part_of(const at::Tensor& record, const Weight& weight) {
  const auto bytes = static_cast<int64_t>(c10::elementSize(weight.dtype));
  std::vector<int64_t> sizes = weight.sizes, strides = weight.strides;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    if (strides[k] == 0) sizes[k] = 1;  // an expanded dimension
    if (sizes[k] == 1) strides[k] = 0;
    strides[k] *= bytes;
  }
  const auto total = internal::bytes_of(sizes, weight.dtype);
  if (!total || *total > record.numel()) {
    return record.slice(0, weight.offset * bytes,
                        static_cast<int64_t>(bytes_of(weight)));
  }
  sizes.push_back(bytes);
  strides.push_back(1);
  // Reductions take 64 dimensions at most.
  return record.as_strided(sizes, strides, weight.offset * bytes).squeeze();
}

// Finds the overlapping weights of one record. `numbers`: all weights of the
// record that have elements and are not tied to an earlier one.
void find_overlaps(std::vector<int> numbers, std::vector<Weight>& weights) {
  const auto begin = [&](int number) {
    return static_cast<uint64_t>(weights[number].offset) *
           c10::elementSize(weights[number].dtype);
  };
  std::ranges::stable_sort(numbers, {}, begin);
  uint64_t end = 0;
  bool mixed = false;
  for (const int each : numbers) {
    mixed = mixed || begin(each) < end;
    end = std::max(end, bytes_of(weights[each]));
  }
  if (!mixed) return;
  // With a device, since a MetaGuard moves tensors that have none.
  const auto unused = [&] {
    return at::zeros({static_cast<int64_t>(end)},
                     at::TensorOptions().dtype(at::kBool).device(at::kCPU));
  };
  const at::Tensor used = unused();
  for (auto each = numbers.begin(); each != numbers.end(); ++each) {
    Weight& weight = weights[*each];
    const at::Tensor own = part_of(used, weight);
    if (own.any().item().toBool()) {
      for (auto other = numbers.begin(); other != each; ++other) {
        const at::Tensor one = unused();
        part_of(one, weights[*other]).fill_(true);
        if (part_of(one, weight).any().item().toBool()) {
          weight.overlapping.push_back(*other);
        }
      }
    }
    own.fill_(true);
  }
}

void find_overlaps(std::vector<Weight>& weights) {
  std::map<std::string, std::vector<int>> by_record;
  for (std::size_t k = 0; k < weights.size(); ++k) {
    const Weight& weight = weights[k];
    const auto number = static_cast<int>(k);
    if (weight.has_values && weight.tied_to == number && bytes_of(weight) > 0) {
      by_record[weight.record].push_back(number);
    }
  }
  for (auto& [record, numbers] : by_record) {
    find_overlaps(std::move(numbers), weights);
  }
}

}  // namespace

std::vector<Weight> read_weight_list(Archive& archive) {
  std::vector<Weight> weights;
  for (const std::string kind : {"weights", "constants"}) {
    const std::string folder = "data/" + kind + "/";
    const std::string record =
        folder + archive.model() + "_" + kind + "_config.json";
    if (!archive.has(record)) continue;
    const std::size_t first = weights.size();
    read_json(
        archive.text(record), "record " + in_quotes(record) + " ", {},
        [&](const Json& json) { add_entries(json, folder, archive, weights); });
    for (std::size_t k = first; k < weights.size(); ++k) {
      weights[k].persistent = kind == "weights";
    }
  }
  find_ties(weights);
  find_overlaps(weights);
  return weights;
}

at::Tensor read_weight(Archive& archive, const Weight& weight) {
  at::Tensor tensor = at::empty({0}, weight.dtype);
  const uint64_t bytes = bytes_of(weight);
  if (bytes == 0) {
    tensor.resize_(weight.sizes);
    return tensor;
  }
  check_fits(archive, weight);
  // Under a MetaGuard, tensors have no values to read.
  if (tensor.is_meta()) return weight_without_values(weight);
  TORCH_CHECK_VALUE(weight.has_values, "has no values of ",
                    in_quotes(weight.name),
                    ", because the model was exported on the meta device; load "
                    "it under a gpipe::MetaGuard for a dry run, or export a "
                    "model whose weights are on the CPU");
  const c10::Storage storage = archive.storage(weight.record);
  TORCH_CHECK_VALUE(bytes <= storage.nbytes(), "record ",
                    in_quotes(weight.record), " has only ", storage.nbytes(),
                    " of ", bytes, " bytes");
  tensor.set_(storage, weight.offset, weight.sizes, weight.strides);
  // A part of a larger storage, such as one layer of a stacked weight, or an
  // expanded weight, into which nothing could be loaded.
  const bool is_whole = bytes == storage.nbytes() && weight.offset == 0 &&
                        tensor.is_non_overlapping_and_dense();
  return is_whole ? tensor : tensor.clone();
}

at::Tensor weight_without_values(const Weight& weight) {
  at::Tensor tensor =
      at::empty_strided(weight.sizes, weight.strides, weight.dtype);
  // Elements of an expanded weight share memory.
  if (!tensor.is_non_overlapping_and_dense()) {
    tensor = at::empty(weight.sizes, weight.dtype);
  }
  if (tensor.is_floating_point() || tensor.is_complex()) {
    return tensor.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  return tensor.zero_();
}

}  // namespace gpipe::exported
