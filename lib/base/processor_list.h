// Lists of logical processors by the system's numbers, and threads bound to them.
#pragma once

#include <pthread.h>

#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace headrace {

inline constexpr int kMaxProcessor = 8191;  // the most that Linux can be built for
inline constexpr size_t kMaxListedProcessors = 1024;

// "0-3,8" is {0, 1, 2, 3, 8}, in the order of the text; empty text is an empty list. kInvalidArgument with an empty place for
// what is no such list, a number beyond kMaxProcessor, a range that ends before it begins, a processor named twice, or more
// than kMaxListedProcessors.
Result<std::vector<int>> parse_processor_list(std::string_view text);

// Lets the thread run on this processor alone, of [0, kMaxProcessor]; gives the system's error number, 0 for success.
int bind_thread(pthread_t thread, int processor);

// kInvalidArgument with an empty place, naming the first processor to which the system binds no thread of this process: there
// is none of that number, or it is not for this process. Tried on a thread of its own, the caller's stays as it is.
Status check_processors(std::span<const int> processors);

}  // namespace headrace
