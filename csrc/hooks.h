#pragma once

#include <pybind11/pybind11.h>

// Adds to `m` what the tests need of the shared arithmetic.
void add_hooks(pybind11::module_& m);
