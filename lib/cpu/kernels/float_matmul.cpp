#include "cpu/kernels/isa.h"
