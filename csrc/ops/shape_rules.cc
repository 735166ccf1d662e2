#include "shape_rules.h"

#include <algorithm>
#include <ostream>
#include <sstream>

#include "../error.h"

namespace lazynet {

static std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << '(' << shape.rows << ", " << shape.cols << ')';
}

namespace shape_rules {
namespace {

// "linear: the arguments have shapes (1, 3), (4, 5)": how every message of a shape rule begins.
std::string given(const ShapeRequest& request) {
  std::ostringstream text;
  text << request.op << ": ";
  if (request.count == 1) {
    text << "the argument has shape " << request.arguments[0];
  } else {
    text << "the arguments have shapes ";
    constexpr int kShown = 8;
    for (int i = 0; i < std::min(request.count, kShown); ++i) text << (i ? ", " : "") << request.arguments[i];
    if (request.count > kShown) text << ", and " << request.count - kShown << " more";
  }
  return text.str();
}

int axis_of(const ShapeRequest& request) {
  double axis = request.attributes[0];
  if (axis != 0 && axis != 1 && axis != 2)
    fail(LN_VALUE_ERROR, request.op, ": axis is ", axis, "; 0 (over rows), 1 (over cols) or 2 (all) is required");
  return static_cast<int>(axis);
}

void require_size(const ShapeRequest& request, const Shape& shape) {
  constexpr int64_t kLargest = int64_t{1} << 31;
  if (shape.rows >= kLargest || shape.cols >= kLargest)
    fail(LN_SHAPE_ERROR, given(request), "; the result would have shape ", shape, ", more than 2^31 - 1 rows or cols");
}

}  // namespace

Shape same_shape(const ShapeRequest& request) { return request.arguments[0]; }

Shape broadcast_shape(const ShapeRequest& request) {
  Shape result = request.arguments[0];
  for (int i = 1; i < request.count; ++i) {
    const Shape& other = request.arguments[i];
    auto fits = [](int64_t a, int64_t b) { return a == b || a == 1 || b == 1; };
    if (!fits(result.rows, other.rows) || !fits(result.cols, other.cols))
      fail(LN_SHAPE_ERROR, given(request), "; equal shapes, or sizes of 1 that can be repeated, are required");
    result.rows = result.rows == 1 ? other.rows : result.rows;
    result.cols = result.cols == 1 ? other.cols : result.cols;
  }
  return result;
}

// payload: row, rows, col, cols
Shape slice_shape(const ShapeRequest& request) {
  const Shape& x = request.arguments[0];
  const int64_t row = request.payload[0], rows = request.payload[1];
  const int64_t col = request.payload[2], cols = request.payload[3];
  auto inside = [](int64_t begin, int64_t size, int64_t whole) {
    return begin >= 0 && size >= 0 && begin <= whole && size <= whole - begin;
  };
  if (!inside(row, rows, x.rows) || !inside(col, cols, x.cols))
    fail(LN_INDEX_ERROR, given(request), " and rows ", row, " to ", row + rows, ", cols ", col, " to ", col + cols,
         " are asked for; they must lie inside");
  return {rows, cols};
}

// payload: rows, cols
Shape reshape_shape(const ShapeRequest& request) {
  const Shape result = {request.payload[0], request.payload[1]};
  if (result.rows < 0 || result.cols < 0 || result.elements() != request.arguments[0].elements())
    fail(LN_SHAPE_ERROR, given(request), " and ", result, " is asked for; the number of elements must stay the same");
  return result;
}

Shape linear_shape(const ShapeRequest& request) {
  const Shape &x = request.arguments[0], &w = request.arguments[1];
  const bool transpose = request.attributes[0] != 0;
  const int64_t in = transpose ? w.cols : w.rows, out = transpose ? w.rows : w.cols;
  if (x.cols != in)
    fail(LN_SHAPE_ERROR, given(request), " for x (rows, in) and W ", transpose ? "(out, in)" : "(in, out)",
         "; x must have ", in, " cols, not ", x.cols);
  if (request.count == 3 && request.arguments[2] != Shape{1, out})
    fail(LN_SHAPE_ERROR, given(request), " for x, W and bias; the bias must have shape (1, ", out, ")");
  return {x.rows, out};
}

Shape matmul_shape(const ShapeRequest& request) {
  Shape a = request.arguments[0], b = request.arguments[1];
  if (request.attributes[0] != 0) std::swap(a.rows, a.cols);
  if (request.attributes[1] != 0) std::swap(b.rows, b.cols);
  if (a.cols != b.rows)
    fail(LN_SHAPE_ERROR, given(request), request.attributes[0] != 0 ? ", the first transposed" : "",
         request.attributes[1] != 0 ? ", the second transposed" : "", "; the inner sizes must agree, not be ", a.cols,
         " and ", b.rows);
  return {a.rows, b.cols};
}

Shape lookup_shape(const ShapeRequest& request) {
  const Shape& table = request.arguments[0];
  for (int64_t i = 0; i < request.payload_count; ++i)
    if (request.payload[i] < 0 || request.payload[i] >= table.rows)
      fail(LN_INDEX_ERROR, request.op, ": id ", request.payload[i], " at position ", i,
           "; ids of this table must be at least 0 and less than its ", table.rows, " rows");
  return {request.payload_count, table.cols};
}

// payload: rows, cols
Shape constant_shape(const ShapeRequest& request) {
  Shape result = {request.payload[0], request.payload[1]};
  if (result.rows < 0 || result.cols < 0)
    fail(LN_SHAPE_ERROR, request.op, ": shape (", result.rows, ", ", result.cols, ") is asked for; sizes of at least 0",
         " are required");
  require_size(request, result);
  return result;
}

Shape transpose_shape(const ShapeRequest& request) { return {request.arguments[0].cols, request.arguments[0].rows}; }

Shape concat_cols_shape(const ShapeRequest& request) {
  Shape result = request.arguments[0];
  for (int i = 1; i < request.count; ++i) {
    if (request.arguments[i].rows != result.rows)
      fail(LN_SHAPE_ERROR, given(request), "; the same number of rows is required");
    result.cols += request.arguments[i].cols;
  }
  require_size(request, result);
  return result;
}

Shape concat_rows_shape(const ShapeRequest& request) {
  Shape result = request.arguments[0];
  for (int i = 1; i < request.count; ++i) {
    if (request.arguments[i].cols != result.cols)
      fail(LN_SHAPE_ERROR, given(request), "; the same number of cols is required");
    result.rows += request.arguments[i].rows;
  }
  require_size(request, result);
  return result;
}

Shape sum_nodes_shape(const ShapeRequest& request) {
  for (int i = 1; i < request.count; ++i)
    if (request.arguments[i] != request.arguments[0])
      fail(LN_SHAPE_ERROR, given(request), "; equal shapes are required");
  return request.arguments[0];
}

Shape reduce_shape(const ShapeRequest& request) {
  const Shape& x = request.arguments[0];
  switch (axis_of(request)) {
    case 0:
      return {1, x.cols};
    case 1:
      return {x.rows, 1};
    default:
      return {1, 1};
  }
}

Shape reduce_nonempty_shape(const ShapeRequest& request) {
  const Shape& x = request.arguments[0];
  const int axis = axis_of(request);
  const bool empty = axis == 0 ? x.rows == 0 && x.cols > 0 : axis == 1 ? x.cols == 0 && x.rows > 0 : x.elements() == 0;
  if (empty) fail(LN_SHAPE_ERROR, given(request), "; at least one element to choose from is required");
  return reduce_shape(request);
}

Shape layer_norm_shape(const ShapeRequest& request) {
  const Shape& x = request.arguments[0];
  for (int i = 1; i < request.count; ++i)
    if (request.arguments[i] != Shape{1, x.cols})
      fail(LN_SHAPE_ERROR, given(request), "; weight and bias must have shape (1, ", x.cols, ")");
  return x;
}

// payload: a class a row. attributes[0]: the class that is not counted.
Shape class_loss_shape(const ShapeRequest& request) {
  const Shape& x = request.arguments[0];
  if (request.payload_count != x.rows)
    fail(LN_SHAPE_ERROR, given(request), " and ", request.payload_count, " targets are given; one a row is required");
  const auto ignored = static_cast<int64_t>(request.attributes[0]);
  for (int64_t i = 0; i < request.payload_count; ++i) {
    const int64_t target = request.payload[i];
    if (target != ignored && (target < 0 || target >= x.cols))
      fail(LN_INDEX_ERROR, request.op, ": target ", target, " of row ", i,
           "; targets must be at least 0 and less than ", x.cols, ", the number of cols, or the ignored ", ignored);
  }
  return {x.rows, 1};
}

}  // namespace shape_rules
}  // namespace lazynet
