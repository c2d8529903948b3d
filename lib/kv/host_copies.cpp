#include "kv/host_copies.h"

#include <new>

namespace headrace::kv {

std::shared_ptr<const BlockCopy> HostCopies::find(const TierKey& key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  order_.splice(order_.end(), order_, found->second);
  return *found->second;
}

void HostCopies::keep(std::shared_ptr<const BlockCopy> copy) {
  const uint64_t bytes = copy->raw.size();
  if (bytes > stats_.max_bytes || find(copy->record.key) != nullptr) return;
  while (stats_.bytes + bytes > stats_.max_bytes) {
    erase(index_.find(order_.front()->record.key));
    ++stats_.evicted_copies;
  }
  const auto place = order_.insert(order_.end(), std::move(copy));
  try {
    index_.emplace((*place)->record.key, place);
  } catch (const std::bad_alloc&) {
    order_.erase(place);
    throw;
  }
  stats_.bytes += bytes;
  ++stats_.copies;
  ++stats_.kept_copies;
}

void HostCopies::erase(const TierKey& key) {
  if (const auto found = index_.find(key); found != index_.end()) erase(found);
}

void HostCopies::erase(Index::iterator entry) {
  const auto place = entry->second;
  stats_.bytes -= (*place)->raw.size();
  --stats_.copies;
  index_.erase(entry);
  order_.erase(place);
}

void HostCopies::clear(const Hash128& tag) {
  for (auto entry = index_.begin(); entry != index_.end();) {
    const auto here = entry++;
    if (here->first.tag == tag) erase(here);
  }
}

}  // namespace headrace::kv
