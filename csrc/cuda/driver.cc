#include "driver.h"

#include <dlfcn.h>

#include "../error.h"

namespace lazynet::cuda {
namespace {

void* load(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!library) fail(LN_DEVICE_ERROR, "cuda: ", dlerror());
  return library;
}

template <class Pointer>
void find(void* library, const std::string& path, const char* symbol, Pointer* function) {
  *function = reinterpret_cast<Pointer>(dlsym(library, symbol));
  if (!*function) fail(LN_DEVICE_ERROR, "cuda: ", path, " has no ", symbol, "; a newer one is required");
}

}  // namespace

Driver::Driver(const std::string& driver, const std::string& blas) {
  void* library = load(driver);
#define LN_FIND(name, symbol, arguments) find(library, driver, #symbol, &name);
  LN_DRIVER_FUNCTIONS(LN_FIND)
  void* blas_library = load(blas);
#undef LN_FIND
#define LN_FIND(name, symbol, arguments) find(blas_library, blas, #symbol, &name);
  LN_BLAS_FUNCTIONS(LN_FIND)
#undef LN_FIND
}

void Driver::check(int result, const char* what) const {
  if (result == 0) return;
  const char* text = nullptr;
  error_text(result, &text);
  fail(LN_DEVICE_ERROR, "cuda: ", what, " failed: ", text ? text : "an unknown error", " (", result, ")");
}

void Driver::check_blas(int result, const char* what) const {
  if (result != 0) fail(LN_DEVICE_ERROR, "cuda: ", what, " failed: cuBLAS status ", result);
}

}  // namespace lazynet::cuda
