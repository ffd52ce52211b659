// The flags of the launcher.
#pragma once

#include <gflags/gflags.h>

#include <string>
#include <vector>

DECLARE_int32(nproc);
DECLARE_int32(nnodes);
DECLARE_int32(node_rank);
DECLARE_string(master_addr);
DECLARE_int32(master_port);
DECLARE_bool(tag_output);
DECLARE_double(grace);
DECLARE_int32(restarts);

// Sets the flags before the first "--" and returns the words after it: the
// program of the ranks and its arguments. For --help, prints the help and
// returns nothing. Throws std::invalid_argument if a flag is wrong or there is
// no program.
std::vector<std::string> read_command_line(int argc, char** argv);
