// CUDA's vector types, with CUDA's alignment.
#pragma once

#include "interface.h"

using uint3 = ::lazynet::emulator::Index3;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

#define LN_VECTOR2(T, name, alignment)           \
  struct alignas(alignment) name##2 { T x, y; }; \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define LN_VECTOR3(T, name)      \
  struct name##3 { T x, y, z; }; \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
#define LN_VECTOR4(T, name, alignment)                 \
  struct alignas(alignment) name##4 { T x, y, z, w; }; \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

LN_VECTOR2(float, float, 8)
LN_VECTOR3(float, float)
LN_VECTOR4(float, float, 16)
LN_VECTOR2(double, double, 16)
LN_VECTOR2(int, int, 8)
LN_VECTOR3(int, int)
LN_VECTOR4(int, int, 16)
LN_VECTOR2(unsigned, uint, 8)
LN_VECTOR4(unsigned, uint, 16)
LN_VECTOR2(long long, longlong, 16)
// Four doubles move in two accesses of 16 bytes.
LN_VECTOR4(double, double, 16)

#undef LN_VECTOR2
#undef LN_VECTOR3
#undef LN_VECTOR4
