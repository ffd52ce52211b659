// File system operations for run checkpoints, with errors that name the path.
//
// Each function throws c10::Error, with the path and the system's reason, if
// its operation fails.
#pragma once

#include <string>
#include <vector>

#include "models/weights/files.h"

namespace gpipe::internal {

// Returns the content of a file.
std::string read_text(const std::string& path);

// Writes the new file `path`. Returns as FileWriter::finish() does.
void write_text(const std::string& path, const std::string& text);

// Returns the names in a folder, sorted. Returns none if there is no such
// folder.
std::vector<std::string> names_in_folder(const std::string& path);

// Creates a folder. Also throws c10::Error if `path` exists.
void make_folder(const std::string& path);

// Renames a folder or a file. `to` must not exist.
void move_path(const std::string& from, const std::string& to);

// Renames the folder `from` to `to` atomically, and syncs the name to the disk.
// If `to` exists, exchanges the two names and returns true: the previous `to`
// is then named `from`. Some file systems, for example NFS, cannot exchange
// names. There the previous `to` is first moved to `aside`, so that `to` is
// missing for a short time, and the result is false.
bool exchange_folder(const std::string& from, const std::string& to,
                     const std::string& aside);

// Removes a folder with all its contents. Does nothing if it does not exist.
void remove_folder(const std::string& path);

}  // namespace gpipe::internal
