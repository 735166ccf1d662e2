// What a backend does besides the operator table; see Backend for each.
#pragma once

#include <cstdint>
#include <vector>

#include "../backend.h"
#include "queue.h"

namespace lazynet::cuda {

template <class T>
void gather(Queue& queue, const Piece* pieces, int64_t count, void* matrix, int64_t ld);
// Uses no working memory of the queue, in which the matrix may be.
template <class T>
void scatter_add(Queue& queue, const void* matrix, int64_t ld, const Piece* pieces, int64_t count, bool overlapping);
// Launchers of other files: rows that lie anywhere, or have these numbers in a table, one below another to a matrix.
template <class T>
void gather_rows(Queue& queue, const std::vector<void*>& rows, int64_t cols, void* matrix, int64_t ld);
template <class T>
void gather_rows(Queue& queue, const Piece& table, const std::vector<int32_t>& numbers, void* matrix, int64_t ld);
// Adds each row of a matrix to the target with its number, in the order of rows; null targets are not wanted.
template <class T>
void add_rows(Queue& queue, const void* matrix, int64_t ld, int64_t cols, const std::vector<int32_t>& target_of,
              const std::vector<void*>& targets);
template <class T>
void fused_forward(Queue& queue, const Fused& fused);
template <class T>
void fused_backward(Queue& queue, const Fused& fused);

template <class T>
void add_column_sums(Queue& queue, const void* matrix, int64_t rows, int64_t cols, int64_t ld, bool all, void* sums);
template <class T>
void add_one(Queue& queue, void* element);
template <class T>
int64_t first_non_finite(Queue& queue, const void* matrix, int64_t rows, int64_t cols, int64_t ld);
template <class T>
void update(Queue& queue, int optimizer, const Update* updates, int64_t count);
template <class T>
double sum_of_squares(Queue& queue, const Stretch* stretches, int64_t count);

}  // namespace lazynet::cuda
