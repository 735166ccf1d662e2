// Shape rules of the operator table: one function a rule, each returns the result's shape or throws. And the rules for
// working memory.
#pragma once

#include "op.h"

namespace lazynet::shape_rules {

Shape same_shape(const ShapeRequest&);
Shape broadcast_shape(const ShapeRequest&);
Shape slice_shape(const ShapeRequest&);
Shape reshape_shape(const ShapeRequest&);
Shape linear_shape(const ShapeRequest&);
Shape matmul_shape(const ShapeRequest&);
Shape lookup_shape(const ShapeRequest&);
Shape constant_shape(const ShapeRequest&);
Shape transpose_shape(const ShapeRequest&);
Shape concat_cols_shape(const ShapeRequest&);
Shape concat_rows_shape(const ShapeRequest&);
Shape sum_nodes_shape(const ShapeRequest&);
Shape reduce_shape(const ShapeRequest&);
Shape reduce_nonempty_shape(const ShapeRequest&);
Shape layer_norm_shape(const ShapeRequest&);
Shape class_loss_shape(const ShapeRequest&);
Shape linear_loss_shape(const ShapeRequest&);
Shape band_shape(const ShapeRequest&);
Shape attention_shape(const ShapeRequest&);
Shape rotary_shape(const ShapeRequest&);
Shape unfold_shape(const ShapeRequest&);
Shape take_rows_shape(const ShapeRequest&);
Shape take_cols_shape(const ShapeRequest&);
Shape top_ids_shape(const ShapeRequest&);
Shape lookup_ids_shape(const ShapeRequest&);
Shape crf_shape(const ShapeRequest&);
Shape crf_path_shape(const ShapeRequest&);

}  // namespace lazynet::shape_rules

namespace lazynet::scratch_rules {

// Rows of linear_cross_entropy whose logits exist at a time: as many as fit the cache, and enough for products that are
// bound by arithmetic.
constexpr int64_t kMostLossRows = 1024;
inline int64_t loss_block_rows(int64_t rows, int64_t classes) {
  constexpr int64_t kElements = int64_t{1} << 21, kFewest = 64;
  const int64_t fit = kElements / (classes + 1);
  const int64_t block = fit < kFewest ? kFewest : fit < kMostLossRows ? fit : kMostLossRows;
  return rows < block ? rows : block;
}
int64_t loss_block(const ScratchRequest&);
int64_t crf_sums(const ScratchRequest&);

}  // namespace lazynet::scratch_rules
