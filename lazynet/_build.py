"""The cffi module: its declarations are cut from the C interface, csrc/lazynet.h."""

import re
from pathlib import Path

from cffi import FFI

HEADER = Path(__file__).resolve().parent.parent / "csrc" / "lazynet.h"

declarations = re.search(r"/\* cdef begin \*/(.*)/\* cdef end \*/", HEADER.read_text(), re.S)
if declarations is None:
    raise RuntimeError(f"{HEADER} has no part between 'cdef begin' and 'cdef end'")

ffi = FFI()
ffi.cdef(declarations.group(1))
# What the core calls for a device's memory and kernels, see device.py.
ffi.cdef("""
extern "Python" {
  void* lazynet_device_allocate(void*, size_t);
  void lazynet_device_deallocate(void*, void*, size_t);
  const void* lazynet_device_compile(void*, const char*, const char*, const char*, char*, size_t);
}
""")
ffi.set_source(
    "lazynet._lib",
    '#include "lazynet.h"',
    include_dirs=["csrc"],
    libraries=["dl", "stdc++"],
    extra_link_args=["-pthread"],
)
