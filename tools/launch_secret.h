// The secret of a run that the launcher starts.
#pragma once

#include <string>

// Returns the path of a new file with a random secret, 64 hexadecimal digits.
// The file is in memory. Only processes of this user can open it, while this
// process runs. Throws std::system_error if the system has no random numbers.
std::string make_secret();
