// Products of so few rows that each code is used about once: decoding, small batches, the rows of a draft.
#pragma once

#include "cpu/kernels/quantized_tile.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

// Adds the products of a task to scratch.first and scratch.second, unpacking codes in registers. Any number of rows; few
// are what it is fast for. False, with nothing done, for formats that unpack through memory only.
bool run_few_rows(const QuantizedTask& task, const Scratch& scratch);

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
