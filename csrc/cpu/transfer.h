// What a backend does besides kernels; see Backend for each.
#pragma once

#include "kernels.h"

namespace lazynet::cpu::LN_UNIT {

template <class T>
void gather(const Piece* pieces, int64_t count, void* matrix, int64_t ld);
template <class T>
void scatter_add(const void* matrix, int64_t ld, const Piece* pieces, int64_t count, bool overlapping);
template <class T>
void fused_forward(const Fused& fused);
template <class T>
void fused_backward(const Fused& fused);
template <class T>
void add_column_sums(const void* matrix, int64_t rows, int64_t cols, int64_t ld, bool all, void* sums);
void zero(void* address, std::size_t bytes);
template <class T>
int64_t first_non_finite(const void* matrix, int64_t rows, int64_t cols, int64_t ld);
template <class T>
void update(int optimizer, const Update& update);
template <class T>
double sum_of_squares(const void* data, int64_t count);

}  // namespace lazynet::cpu::LN_UNIT
