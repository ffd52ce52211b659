// TensorBoard's event files, as far as numbers need them.
//
// A file is a sequence of records, each framed as TensorFlow's TFRecord: the
// length of its data (8 bytes, smallest first), the masked CRC-32C of these 8
// bytes, the data, the masked CRC-32C of the data. Masked is a CRC that is
// rotated right by 15 bits and then increased by 0xa282ead8
// (tensorflow/core/lib/hash/crc32c.h). The data is a protobuf message Event
// (tensorboard/compat/proto/event.proto), of which these fields are used:
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

#include "training/file_operations.h"

namespace gpipe {

// A new event file, from its first record on. What a call has written is in the
// file when it returns, whole; a process that dies leaves a last record that
// TensorBoard passes over.
//
// Errors: c10::Error with the path and the system's reason; after that the
// object can only be destroyed. Threads: one at a time.
class EventFile {
 public:
  // Makes FOLDER/events.out.tfevents.<seconds>.<host>.gpipe and begins it with
  // the version of the format. `seconds`: Unix time. The folder must be there.
  // Since TensorBoard reads the files of a folder in the order of their names,
  // the name gets a later second than those of all event files that are there.
  EventFile(const std::string& folder, double seconds);

  // The paths of the files of a folder that this class has written, in order.
  static std::vector<std::string> all_in(const std::string& folder);

  // TensorBoard forgets what it has read, from other files too, of steps from
  // `step` on. (That which serves from Python does. The faster one forgets, of
  // each tag for itself, the steps from one on that it reads again.)
  void restart(double seconds, int64_t step);

  // Numbers of a step, by tag ("train/loss"; what is before the slash groups
  // them). They are stored as float.
  void scalars(double seconds, int64_t step,
               const std::vector<std::pair<std::string, double>>& values);

 private:
  void write_event(double seconds, int64_t step, const std::string& content);

  FileWriter file_;
};

}  // namespace gpipe
