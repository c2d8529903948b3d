// A file written whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/status.h"

namespace headrace {

using WriteBytes = std::function<Status(std::span<const std::byte>)>;

// Writes a file through `fill`, beside `path` first; renames it into place when all of it is on disk, and removes it
// otherwise. A symbolic link is followed. A file that is there keeps its mode, a new one has `new_mode`; what is there
// and no regular file is refused. kIo with the path as place.
Status replace_file(const std::string& path, const std::function<Status(const WriteBytes&)>& fill,
                    uint32_t new_mode = 0600);

}  // namespace headrace
