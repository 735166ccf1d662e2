#include "shape_rules.h"

#include <algorithm>
#include <limits>
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

// x, W and bias as in linear; payload and the ignored class as in class_loss.
Shape linear_loss_shape(const ShapeRequest& request) {
  const Shape logits = linear_shape(request);
  ShapeRequest loss = request;
  loss.arguments = &logits;
  loss.count = 1;
  loss.attributes = request.attributes + 1;
  return class_loss_shape(loss);
}

// attributes: ..., before, after; NaN is no number of positions.
static void require_band(const ShapeRequest& request, double before, double after) {
  if (!(before >= 0) || !(after >= 0))
    fail(LN_VALUE_ERROR, request.op, ": a window of ", before, " positions before and ", after,
         " after is given; at least 0 is required");
}

Shape band_shape(const ShapeRequest& request) {
  const double before = request.attributes[1], after = request.attributes[2];
  require_band(request, before, after);
  const bool all = before == std::numeric_limits<double>::infinity() && before == after;
  if (!all && axis_of(request) != 1)
    fail(LN_VALUE_ERROR, request.op, ": a window and axis ", axis_of(request),
         " are given; axis 1 (over cols) is required");
  return same_shape(request);
}

// attributes: heads ...; every one of `cols` belongs to a head.
static int64_t heads_of(const ShapeRequest& request, int64_t cols) {
  const auto heads = static_cast<int64_t>(request.attributes[0]);
  if (static_cast<double>(heads) != request.attributes[0] || heads < 1 || cols % heads != 0)
    fail(LN_SHAPE_ERROR, given(request), " and ", request.attributes[0], " heads; a number of at least 1 that divides ",
         cols, " cols is required");
  return heads;
}

Shape attention_shape(const ShapeRequest& request) {
  const Shape &q = request.arguments[0], &k = request.arguments[1], &v = request.arguments[2];
  if (q.cols != k.cols || k.rows != v.rows)
    fail(LN_SHAPE_ERROR, given(request), " for queries (n, d), keys (m, d) and values (m, e)",
         q.cols != k.cols ? "; queries and keys must have the same cols" : "; keys and values must have the same rows");
  const int64_t heads = heads_of(request, q.cols);
  heads_of(request, v.cols);
  require_band(request, request.attributes[2], request.attributes[3]);
  const double rate = request.attributes[4];
  if (!(rate >= 0 && rate < 1))
    fail(LN_VALUE_ERROR, request.op, ": a dropout rate of ", rate, " is given; at least 0 and less than 1 is required");
  if (request.count == 4) {
    const Shape& bias = request.arguments[3];
    if (bias.cols != k.rows || (bias.rows != q.rows && bias.rows != heads * q.rows))
      fail(LN_SHAPE_ERROR, given(request), "; the bias must have shape (", q.rows, ", ", k.rows, "), or (",
           heads * q.rows, ", ", k.rows, ") with the rows of a head below those of the one before");
  }
  return {q.rows, v.cols};
}

Shape rotary_shape(const ShapeRequest& request) {
  const Shape& x = request.arguments[0];
  const int64_t heads = heads_of(request, x.cols);
  if (x.cols / heads % 2 != 0)
    fail(LN_SHAPE_ERROR, given(request), " and ", heads, " heads; an even number of cols a head is required");
  if (request.payload_count != 1) fail(LN_VALUE_ERROR, request.op, ": the position of the first row is required");
  return x;
}

Shape unfold_shape(const ShapeRequest& request) {
  const Shape& x = request.arguments[0];
  int64_t size[4];
  for (int i = 0; i < 4; ++i) size[i] = static_cast<int64_t>(request.attributes[i]);
  const auto [width, stride, padding, dilation] = size;
  if (width < 1 || stride < 1 || padding < 0 || dilation < 1)
    fail(LN_VALUE_ERROR, request.op, ": width ", width, ", stride ", stride, ", padding ", padding, ", dilation ",
         dilation, "; at least 1, 1, 0 and 1 are required");
  const int64_t room = x.rows + 2 * padding - dilation * (width - 1) - 1;
  const Shape result = {room < 0 ? 0 : room / stride + 1, width * x.cols};
  require_size(request, result);
  return result;
}

Shape take_rows_shape(const ShapeRequest& request) {
  const Shape& x = request.arguments[0];
  for (int64_t i = 0; i < request.payload_count; ++i)
    if (request.payload[i] < 0 || request.payload[i] >= x.rows)
      fail(LN_INDEX_ERROR, given(request), " and row ", request.payload[i], " is asked for at position ", i,
           "; rows of at least 0 and less than ", x.rows, " are required");
  return {request.payload_count, x.cols};
}

Shape take_cols_shape(const ShapeRequest& request) {
  if (request.arguments[0].rows != request.arguments[1].rows)
    fail(LN_SHAPE_ERROR, given(request), " for values and the columns to take; the same number of rows is required");
  return request.arguments[1];
}

Shape top_ids_shape(const ShapeRequest& request) {
  const Shape& x = request.arguments[0];
  const auto count = static_cast<int64_t>(request.attributes[0]);
  if (count < 1 || count > x.cols)
    fail(LN_SHAPE_ERROR, given(request), " and the ", count, " largest of every row are asked for; 1 to ", x.cols,
         " are possible");
  // Ids are kept as numbers of the graph's type.
  constexpr int64_t kExact = int64_t{1} << 24;
  if (x.cols > kExact) fail(LN_SHAPE_ERROR, given(request), "; at most 2^24 cols are possible");
  return {x.rows, count};
}

Shape lookup_ids_shape(const ShapeRequest& request) {
  return {request.arguments[1].elements(), request.arguments[0].cols};
}

Shape crf_shape(const ShapeRequest& request) {
  const int64_t tags = request.arguments[0].cols;
  if (request.arguments[1] != Shape{tags, tags} || request.arguments[2] != Shape{1, tags} ||
      request.arguments[3] != Shape{1, tags})
    fail(LN_SHAPE_ERROR, given(request), " for emissions (T, tags), transitions, start and end; transitions must have ",
         "shape (", tags, ", ", tags, "), start and end (1, ", tags, ")");
  if (tags == 0) fail(LN_SHAPE_ERROR, given(request), "; at least one tag is required");
  return {1, 1};
}

Shape crf_path_shape(const ShapeRequest& request) {
  crf_shape(request);
  return {request.arguments[0].rows, 1};
}

}  // namespace shape_rules

namespace scratch_rules {

int64_t loss_block(const ScratchRequest& request) {
  const Shape& w = request.arguments[1];
  const int64_t classes = request.attributes[0] != 0 ? w.rows : w.cols;
  return loss_block_rows(request.rows, classes) * classes;
}

// Sums over the paths up to every place, and two rows for those from there on.
int64_t crf_sums(const ScratchRequest& request) {
  return (request.rows + 2 * request.members) * request.arguments[0].cols;
}

}  // namespace scratch_rules
}  // namespace lazynet
