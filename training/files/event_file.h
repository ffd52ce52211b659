// TensorBoard's event files, with only the parts that scalars need.
//
// A file is a sequence of records in TensorFlow's TFRecord format. A record is
// the length of its data (8 bytes, little-endian), the masked CRC-32C of these
// 8 bytes, the data, and the masked CRC-32C of the data. To mask a CRC, rotate
// it right by 15 bits and add 0xa282ead8 (tensorflow/core/lib/hash/crc32c.h).
// The data is a protobuf message Event
// (tensorboard/compat/proto/event.proto), with these fields:
//
//   1 double wall_time     3 string file_version ("brain.Event:2")
//   2 int64 step           5 Summary summary { 1 repeated Value
//                              { 1 string tag, 2 float simple_value } }
//                          7 SessionLog session_log { 1 status (START = 1) }
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "training/files/file_operations.h"

namespace gpipe::internal {

// A writer of one new event file. When a function returns, its whole record is
// in the file. If the process dies during a call, the file ends in an
// incomplete record, which TensorBoard ignores.
//
// All functions throw c10::Error, with the path and the system's reason, if the
// file cannot be written. After that the object can only be destroyed.
// Not thread-safe.
class EventFile {
 public:
  // Creates FOLDER/events.out.tfevents.<seconds>.<host>.gpipe and writes the
  // version of the format. `seconds`: Unix time. The folder must exist.
  // TensorBoard reads the files of a folder in the order of their names, so the
  // name gets a later second than the names of all event files in the folder.
  EventFile(const std::string& folder, double seconds);

  // Returns the paths of the files in `folder` that this class has written, in
  // the order of their names.
  static std::vector<std::string> all_in(const std::string& folder);

  // Tells TensorBoard to drop the data that it has read for `step` and all
  // later steps, also from other files. TensorBoard's Python reader does so.
  // Its faster reader (rustboard) drops data tag by tag: from the first step
  // that it reads again for this tag.
  void restart(double seconds, int64_t step);

  // Writes the values of one step by tag, for example "train/loss". TensorBoard
  // groups tags by the part before the slash. Values are stored as float.
  void scalars(double seconds, int64_t step,
               const std::vector<std::pair<std::string, double>>& values);

 private:
  void write_event(double seconds, int64_t step, const std::string& content);

  FileWriter file_;
};

}  // namespace gpipe::internal
