// A backend around another that computes each op a second time by the scalar reference, and remembers where they differ: how a
// model's self-check finds a kernel that this machine computes wrongly.
#pragma once

#include <memory>

#include "base/status.h"
#include "ops/backend.h"

namespace headrace {

class CheckingBackend : public Backend {
 public:
  // The first op whose result was not the reference's: kInternal, with the op as place, naming types, backend and values. Of
  // wide products some outputs are compared, of experts some rows; of all else everything.
  virtual const Status& difference() const = 0;
  // Ops compared so far.
  virtual int64_t num_checked() const = 0;
};

// `backend` must outlive it and have packed all weights. Inputs of products are moved to numbers that activation codes hold
// exactly, so that results differ by roundings alone: it computes nothing that anybody wants.
std::unique_ptr<CheckingBackend> make_checking_backend(Backend& backend);

}  // namespace headrace
