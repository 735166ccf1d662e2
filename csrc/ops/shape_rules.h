// Shape rules of the operator table: one function a rule, each returns the result's shape or throws.
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

}  // namespace lazynet::shape_rules
