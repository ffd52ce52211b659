// Reads and writes the weights in the folders of Hugging Face's transformers:
// model.safetensors, or several files with model.safetensors.index.json.
#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/weights/names.h"
#include "models/weights/run_shard.h"
#include "models/weights/state_dict.h"

namespace gpipe {

// Of models/exported/exported.h. Its library, @gpipe//models/exported, defines
// the functions below that take one.
struct ExportedModel;

// Options of load_hugging_face().
struct HuggingFaceOptions {
  // The dtype that floating-point weights get. nullopt: as stored.
  TORCH_ARG(std::optional<torch::Dtype>, dtype) = std::nullopt;

  // Whether missing and unexpected names are errors.
  TORCH_ARG(bool, strict) = true;

  // Weights whose names in the program begin with one of these texts are not
  // loaded, such as "lm_head." for another vocabulary.
  TORCH_ARG(std::vector<std::string>, skip) = {};
};

// Loads the weights of a folder that save_pretrained() of transformers wrote,
// or save_hugging_face(), into the layers of an exported program. `model` may
// be a part of the program: then only the bytes of its own weights are read,
// but names, shapes and dtypes of the whole program are checked, so that all
// ranks find the same errors.
//
// Names are those of the program. They may differ from those in the folder by
// one prefix ("transformer.", or that of a module around the model). Tied
// weights may be in the folder once or under each name, with equal values.
//
// Weights of another dtype than the model's change the model's dtype, since the
// folder decides unless HuggingFaceOptions::dtype is set. Parameters stay the
// same tensor objects, so that optimizers and pipelines keep them, but get new
// memory and lose their gradients then. So load before the pipeline is made,
// and call state_dict() again. A program whose nodes contain floating-point
// dtypes computes in them, whatever the weights are, and so only takes weights
// of the dtypes of the export.
//
// Tensors are read one after the other, directly into the memory of the model
// if dtype and device allow. If the model is on the meta device, as under a
// MetaGuard (gpipe/meta.h), names, shapes and dtypes are checked, and no tensor
// is read.
//
// Throws one c10::ValueError that names the file and the tensors, before
// anything is changed, if
// - the folder lies: files are missing, cut or not valid, their names lead out
//   of the folder, or a tensor is not where the index says, or is there twice,
// - names are missing or unexpected, or shapes differ,
// - tied weights have different values in the folder,
// - weights would change to a dtype that the program does not take,
// - a value is beyond the range of HuggingFaceOptions::dtype. Weights are read
//   twice if that dtype may have a smaller range than theirs.
// If a disk fails while the tensors are read, c10::ValueError says so, and the
// model has to be loaded again.
//
// Threads: may be called from any thread while no other thread uses the model.
void load_hugging_face(const std::string& folder, ExportedModel& model,
                       const HuggingFaceOptions& options = {});

// Returns all tensors of a folder, sorted by name, on the CPU. For
// load_state_dict(), and to convert files. Throws c10::ValueError as
// load_hugging_face() does if the folder lies. Thread-safe.
StateDict read_hugging_face(const std::string& folder);

// Returns the table from the names of the program to those in the folder, which
// differ by the prefix that load_hugging_face() finds. For rename() in
// models/weights/names.h, before a save that from_pretrained() reads. Throws
// c10::ValueError if the folder lies. Thread-safe.
NameTable hugging_face_names(const std::string& folder,
                             const ExportedModel& model);

// Returns a CRC-32C of the names, dtypes and shapes of all tensors and the
// first bytes of each. Copies of a folder have the same one, and other weights
// of the same model nearly certainly another one. Reads 64 bytes of each
// tensor. `folder` may also be the path of a safetensors file. Throws
// c10::ValueError as read_hugging_face() does. Thread-safe.
uint32_t hugging_face_checksum(const std::string& folder);
// Returns that of a folder into which save_hugging_face() writes these tensors:
// of a weight with several names, only the first one counts. Throws
// c10::ValueError as save_hugging_face() does if one cannot be written.
// Threads: may be called from any thread while no other thread changes the
// tensors.
uint32_t hugging_face_checksum(const StateDict& tensors);

// Writes weights into `folder`, as save_pretrained() does: model.safetensors,
// or files of at most `shard_bytes` bytes of tensors (a larger tensor has a
// file of its own) and their index. Creates the folder if there is none.
// Replaces the weights of an earlier save and removes its files. All other
// files, such as config.json, which from_pretrained() needs, stay as they are.
//
// Tensors may be strided and on any device. A tensor that is there under
// several names (tied weights) is written once, under the first of them.
//
// The files appear when all of them are complete on the disk. If the process
// dies, the folder has the old weights, the new ones, or, in the moment in
// which files of the same name replace each other, no index, so that no reader
// takes a mixture.
//
// Throws c10::ValueError if there are no tensors, if `shard_bytes` is less than
// 1, or as write_safetensors() does; c10::Error if a file cannot be written.
// Threads: may be called from any thread while no other thread changes the
// tensors. Only one save into a folder at a time.
void save_hugging_face(const std::string& folder, const StateDict& tensors,
                       int64_t shard_bytes = 5'000'000'000);

// The same by several processes together, such as the ranks of one replica,
// each with the tensors of its own layers. All see the same folder and make the
// same call. Each writes its own files; the first process writes the index. A
// name that several processes have is written by the first of them. If one of
// them has another folder, all throw c10::ValueError. If there is another error
// in one process, all throw c10::Error, which names the process.
void save_hugging_face(const std::string& folder, const StateDict& tensors,
                       int64_t shard_bytes, const RunShard& shard);

}  // namespace gpipe
