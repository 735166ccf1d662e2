/* The one C interface of the LazyNet core.
 *
 * Conventions
 *   Every function that can fail returns a negative value (ln_status or, for node-building functions,
 *   LN_FAILED) or NULL; ln_error_status() and ln_error_message() then describe the failure of the
 *   calling thread. No C++ exception leaves the core, and a failed call changes nothing.
 *   Sizes are elements unless a name says bytes. Matrices are row-major. Strings are UTF-8, owned by
 *   the core and valid until the next call on the same object by the same thread.
 *   A graph may be used by one thread at a time: a second one gets LN_GRAPH_ERROR. Different graphs are
 *   independent. Parameters are shared: reading them is safe from any thread, and the end of backward,
 *   where gradients are added to them, is serialised by the core.
 *
 * Handles
 *   A node handle is (version << 32 | id), positive; a graph takes a new version, unique in the process,
 *   whenever it is created or cleared, so a handle of an earlier life or of another graph is recognised.
 *   A parameter handle is negative, and may stand wherever a node handle is an argument.
 *
 * The part between the two "cdef" lines is what lazynet/_build.py gives to cffi.
 */
#ifndef LAZYNET_H_
#define LAZYNET_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* cdef begin */
typedef enum {
  LN_OK = 0,
  LN_SHAPE_ERROR = -1,    /* operand shapes do not fit the operator */
  LN_STALE_NODE = -2,     /* the graph was cleared after the node was built */
  LN_GRAPH_ERROR = -3,    /* a call that the state of the graph does not allow */
  LN_OUT_OF_MEMORY = -4,  /* the pool's limit or the machine's memory is reached */
  LN_INDEX_ERROR = -5,    /* a token id, class id, row or column out of range */
  LN_VALUE_ERROR = -6,    /* an attribute or setting out of its domain */
  LN_TYPE_ERROR = -7,     /* element types do not agree */
  LN_NON_FINITE = -8,     /* NaN or infinity found while anomalies are detected */
  LN_DEVICE_ERROR = -9,   /* a library or device that the core needs is not usable */
  LN_INTERNAL_ERROR = -10 /* a defect of LazyNet */
} ln_status;

typedef enum { LN_FLOAT32 = 0, LN_FLOAT64 = 1 } ln_dtype;

typedef struct ln_device ln_device; /* NULL stands for the CPU */
typedef struct ln_graph ln_graph;
typedef struct ln_parameter ln_parameter;
typedef struct ln_optimizer ln_optimizer;
typedef struct ln_cell ln_cell;
typedef struct ln_policy ln_policy;
typedef struct ln_learner ln_learner;

enum { LN_FAILED = -1 }; /* returned in place of a node handle */

/* ---- process ---------------------------------------------------------------------------------- */

int ln_error_status(void);          /* ln_status of this thread's last failure */
const char* ln_error_message(void); /* its text: "<op>: what was given; what is required" */
int64_t ln_error_node(void);        /* id of the node at fault, or -1 */

/* Loads the BLAS shared library at `path`, whose symbols are prefix + "cblas_sgemm" + suffix. */
int ln_load_blas(const char* path, const char* prefix, const char* suffix);
int ln_set_num_threads(int threads); /* worker threads for one graph's kernels, at least 1 */
int ln_num_threads(void);
const char* ln_vector_unit(void);         /* "avx512", "avx2", "baseline" or "portable" */
int ln_set_vector_unit(const char* name); /* one that this machine has; for tests */

/* ---- the operator table ----------------------------------------------------------------------- */

int ln_op_count(void);
const char* ln_op_name(int op);           /* NULL when out of range */
int ln_op_id(const char* name);           /* -1 when there is none */
const char* ln_op_roles(int op);          /* one letter an argument, see csrc/ops/ops.def */
const char* ln_op_attributes(int op);     /* names, separated by spaces */
const char* ln_op_backward_reads(int op); /* "", "a" arguments, "r" result, "ar" */
const char* ln_op_family(int op);         /* "elementwise", "linear", ...: the kernel file */
const char* ln_op_kind(int op);           /* "kernel", "view", "source" */

/* ---- devices ---------------------------------------------------------------------------------- */

typedef struct {
  const char* name;   /* as users write it: "cuda:0" */
  int ordinal;        /* the driver's number of the device */
  const char* driver; /* shared libraries to load: the CUDA driver and cuBLAS */
  const char* blas;
  void* self;                                  /* given to the functions, which any thread may call */
  void* (*allocate)(void* self, size_t bytes); /* aligned to 64 bytes; NULL when there are none */
  void (*deallocate)(void* self, void* address, size_t bytes);
  /* The module of a family's kernels (of csrc/cuda), or of `source` where that is not NULL, compiled with the words of
   * `defines` defined: what the driver loads, to stay valid; NULL after writing why to `error`. */
  const void* (*compile)(void* self, const char* family, const char* source, const char* defines, char* error,
                         size_t error_bytes);
} ln_device_options;
typedef struct {
  int64_t launches;       /* kernels and products that were started one by one, or captured */
  int64_t replays;        /* of captured launches, all at once */
  int64_t uploaded_bytes; /* what launches were told, inputs among it */
} ln_device_statistics;
/* A CUDA device, for the life of the process. */
ln_device* ln_device_create(const ln_device_options*);
/* Waits for its work; from then on memory is not given back to `deallocate`. */
int ln_device_close(ln_device*);
int ln_device_finish(ln_device*); /* waits for its work */
/* Between ordinary memory and the device's, in the order of its work. */
int ln_device_read(ln_device*, void* to, const void* from, size_t bytes);
int ln_device_write(ln_device*, void* to, const void* from, size_t bytes);
int ln_device_copy(ln_device*, void* to, const void* from, size_t bytes);
int ln_device_set_tf32(ln_device*, int on); /* products of float32 in TF32; off at first */
/* What is launched between two waits is captured when it comes the second time, and then replayed as one; off at first.
 */
int ln_device_set_replay(ln_device*, int on);
int ln_device_get_statistics(ln_device*, ln_device_statistics*);

/* ---- parameters ------------------------------------------------------------------------------- */

/* A trainable matrix of rows x cols, zero, outside any graph; its memory is the device's. `sparse`: its gradient is
 * kept for touched rows only and only `lookup` may read it. */
ln_parameter* ln_parameter_create(int64_t rows, int64_t cols, int dtype, int sparse, const char* name, ln_device*);
void ln_parameter_release(ln_parameter*);         /* graphs that use it keep it alive until cleared */
int64_t ln_parameter_handle(const ln_parameter*); /* negative; valid until release */
/* rows * cols elements, owned by the parameter, to read or write. Graphs keep copies of weights for one run only until
 * ln_parameter_value_done was called as often. */
void* ln_parameter_value(ln_parameter*);
void ln_parameter_value_done(ln_parameter*);
void* ln_parameter_gradient(ln_parameter*);        /* dense: rows * cols elements; sparse: NULL */
int64_t ln_parameter_touched(const ln_parameter*); /* sparse: touched rows; dense: 1 if it has a gradient */
/* Sparse: copies the touched row numbers (ascending) and their gradients, touched x cols. */
int ln_parameter_sparse_gradient(ln_parameter*, int32_t* rows, void* values);
int ln_parameter_zero_gradient(ln_parameter*);
int ln_parameter_set_trainable(ln_parameter*, int trainable);
int ln_parameter_set_name(ln_parameter*, const char* name);
/* Another parameter has taken its place: backward fails in graphs that read this one. */
int ln_parameter_set_replaced(ln_parameter*);

/* ---- optimizers ------------------------------------------------------------------------------- */

typedef enum { LN_SGD = 0, LN_ADAGRAD = 1, LN_ADAM = 2, LN_ADAMW = 3 } ln_optimizer_kind;
typedef struct {
  double learning_rate, weight_decay, momentum, dampening, beta1, beta2, epsilon;
  int nesterov;
} ln_hyperparameters;
ln_optimizer* ln_optimizer_create(int kind, ln_parameter* const* parameters, int count);
void ln_optimizer_release(ln_optimizer*);
/* One update of every parameter that has a gradient, then gradients are zero. Gradients are multiplied
 * by `scale` first. Sparse parameters: touched rows only, state and weight decay included. */
int ln_optimizer_step(ln_optimizer*, const ln_hyperparameters*, double scale);
/* The 2-norm of all gradients together, summed in double precision in a fixed order. */
int ln_gradient_norm(ln_parameter* const* parameters, int count, double* norm);
/* State array `slot` (0: momentum / sum of squares / first moment, 1: second moment) of parameter
 * `index`, rows * cols elements, allocated on first use; NULL when the kind has no such slot. */
void* ln_optimizer_state(ln_optimizer*, int index, int slot);
int64_t ln_optimizer_steps(const ln_optimizer*, int index);
int ln_optimizer_set_steps(ln_optimizer*, int index, int64_t steps);

/* ---- graphs ----------------------------------------------------------------------------------- */

typedef struct {
  int dtype;           /* ln_dtype of every value in the graph */
  int train;           /* 0: nothing is kept for backward; values go when their last reader has run */
  int eager;           /* 1: a node is computed as it is built */
  uint64_t seed;       /* of dropout */
  size_t memory_limit; /* bytes the pool may reserve; 0: no limit */
  size_t chunk_bytes;  /* smallest chunk of the pool; 0: default */
  ln_device* device;
} ln_graph_options;

ln_graph* ln_graph_create(const ln_graph_options*);
void ln_graph_release(ln_graph*);
int ln_graph_clear(ln_graph*); /* forgets all nodes, keeps the memory; handles become stale */
int64_t ln_graph_node_count(const ln_graph*);
int64_t ln_graph_version(const ln_graph*);
int ln_graph_set_policy(ln_graph*, const char* name); /* "depth", "agenda", "lookahead", "none" */
int ln_graph_set_seed(ln_graph*, uint64_t seed);      /* and restarts the count of random nodes */
uint64_t ln_graph_random_state(const ln_graph*);      /* the seed with which random nodes go on from here */
int ln_graph_set_memory_limit(ln_graph*, size_t bytes);
int ln_graph_set_anomaly(ln_graph*, int on);
/* With tracing on, a built node's handle comes back as LN_FAILED - handle, so that the caller may record
 * where it was built at no cost to those who do not trace. */
int ln_graph_set_tracing(ln_graph*, int on);
int ln_graph_trim(ln_graph*); /* gives unused chunks of the pool back to the system */

/* ---- building: each returns the new node's handle, or LN_FAILED ------------------------------- */

int64_t ln_add1(ln_graph*, int op, int64_t a);
int64_t ln_add2(ln_graph*, int op, int64_t a, int64_t b);
int64_t ln_add3(ln_graph*, int op, int64_t a, int64_t b, int64_t c);
/* One argument and one or two attributes. */
int64_t ln_add1_x(ln_graph*, int op, int64_t a, double x);
int64_t ln_add1_xx(ln_graph*, int op, int64_t a, double x, double y);
/* One argument and one integer of payload: an embedding row, a class id. */
int64_t ln_add1_id(ln_graph*, int op, int64_t a, int64_t id);
/* The general form. Attributes are part of the signature, payload integers are not. */
int64_t ln_add(ln_graph*, int op, const int64_t* arguments, int count, const double* attributes, int attribute_count,
               const int64_t* payload, int64_t payload_count);
/* A matrix of the caller's numbers, copied; `data` has the graph's element type. */
int64_t ln_add_input(ln_graph*, int64_t rows, int64_t cols, const void* data, int requires_grad);
/* The same of numbers in memory of the graph's device. */
int64_t ln_add_device_input(ln_graph*, int64_t rows, int64_t cols, const void* data, int requires_grad);
/* Rows [row, row + rows) and columns [col, col + cols) of a node, or all its elements in another
 * shape: no copy where the elements already lie that way. */
int64_t ln_add_slice(ln_graph*, int64_t a, int64_t row, int64_t rows, int64_t col, int64_t cols);
/* One row; -1 is the last. */
int64_t ln_add_row(ln_graph*, int64_t a, int64_t row);
/* Part number `part` of `parts` equal parts along rows (axis 0) or columns (axis 1): a slice. */
int64_t ln_add_part(ln_graph*, int64_t a, int axis, int64_t part, int64_t parts);
int64_t ln_add_reshape(ln_graph*, int64_t a, int64_t rows, int64_t cols);

/* ---- cells: functions of nodes that are placed as one node ---------------------------------------- */

/* From a graph in which the function was called on `inputs` and gave `outputs`: its operations, made into fewer and
 * larger steps. NULL with LN_VALUE_ERROR where one of them cannot be part of a cell. */
ln_cell* ln_cell_create(ln_graph* traced, const int64_t* inputs, int input_count, const int64_t* outputs,
                        int output_count, const char* name);
void ln_cell_release(ln_cell*); /* graphs that use it keep it alive until cleared */
int ln_cell_number(const ln_cell*);
const char* ln_cell_text(ln_cell*, int optimized); /* its steps, before or after optimisation */
int ln_cell_same(const ln_cell*, const ln_cell*);  /* 1 where both do exactly the same */
/* The node of a call. Of several outputs, output k is the node k + 1 after it; a single one is the node itself. */
int64_t ln_add_cell(ln_graph*, int cell, const int64_t* arguments, int count);

/* Cells over a directed acyclic structure of `count` places, children before parents. Place i is a call of cell
 * cells[i]: its arguments are row rows[i] of `x` where that is not negative, then all `outputs` outputs of each of its
 * children, children[child_begin[i]] to children[child_begin[i + 1] - 1]. Where `initial` is not NULL, its `outputs`
 * nodes stand in for the children of a place that has none. first[i] becomes its first output's handle. */
int ln_add_recursion(ln_graph*, int64_t count, const int32_t* cells, const int32_t* child_begin,
                     const int32_t* children, int64_t x, const int32_t* rows, int outputs, const int64_t* initial,
                     int64_t* first);

/* One matrix of the rows of `count` nodes, handles[i] + shift each, or those from the last to the first: an output of
 * all places of a recursion. */
int64_t ln_add_stack(ln_graph*, const int64_t* handles, int64_t count, int64_t shift, int reversed);

/* ---- reading ---------------------------------------------------------------------------------- */

int ln_node_shape(const ln_graph*, int64_t node, int64_t* rows_cols); /* two integers */
int ln_node_op(const ln_graph*, int64_t node);
int ln_node_computed(const ln_graph*, int64_t node);      /* 1 or 0 */
int ln_node_requires_grad(const ln_graph*, int64_t node); /* 1 or 0 */
/* Copies rows * cols elements out; computes the node first where needed. */
int ln_node_value(ln_graph*, int64_t node, void* out);
/* The same to memory of the graph's device; waits until it is there. */
int ln_node_copy_value(ln_graph*, int64_t node, void* out);
/* Returns 1 and copies, or 0 when the node holds no gradient, or an error. */
int ln_node_gradient(const ln_graph*, int64_t node, void* out);

/* ---- running ---------------------------------------------------------------------------------- */

/* Computes what `nodes` need and is not yet computed; count 0: everything. */
int ln_graph_forward(ln_graph*, const int64_t* nodes, int64_t count);
/* Gradients of `loss`, a 1 x 1 node; computes it first where needed. Gradients of parameters are
 * added to what they hold, gradients of nodes are those of this call alone. `retain` 0: those of other nodes
 * than inputs share memory and are gone afterwards. */
int ln_graph_backward(ln_graph*, int64_t loss, int retain);

/* A policy driven from outside: begin, then while ln_schedule_ready() > 0 take one of the signatures
 * it lists, then ln_schedule_run. */
typedef struct {
  int32_t signature, op;
  int64_t ready, remaining; /* nodes of the signature that can run now / that have not been taken */
  /* Of those left, the ones that begin a longest chain of nodes of the signature, and how many of them are ready: with
   * all of them in it a batch is safe, the lower bound of what is left falls by one. */
  int64_t heads, ready_heads;
  double average_depth; /* over all nodes of the signature in this schedule */
} ln_ready_signature;
int ln_schedule_begin(ln_graph*, const int64_t* nodes, int64_t count);
int64_t ln_schedule_ready(ln_graph*, ln_ready_signature* out, int64_t capacity); /* returns how many */
int ln_schedule_take(ln_graph*, int32_t signature, int64_t count); /* the first `count` ready nodes by id */
int ln_schedule_run(ln_graph*);

/* ---- learned policies ------------------------------------------------------------------------- */

/* A finite-state policy as text, a line each: first "agenda" or "lookahead", for states that are unknown, then rules:
 * the signature to run and those of the state, separated by tabs, each after a "!" where it is safe, else a "?".
 * Signatures are texts that do not depend on the graph. */
ln_policy* ln_policy_create(const char* text);
void ln_policy_release(ln_policy*); /* graphs that use it keep it alive */
const char* ln_policy_text(ln_policy*);
int ln_graph_set_learned_policy(ln_graph*, const ln_policy*);
typedef struct {
  int64_t learned, agenda, lookahead, lower_bound; /* batches of all graphs shown together */
} ln_learning;
ln_learner* ln_learner_create(void);
void ln_learner_release(ln_learner*);
int ln_learner_add(ln_learner*, ln_graph*); /* shows it what the graph has not computed; the graph stays as it is */
ln_policy* ln_learner_run(ln_learner*, int trials, uint64_t seed, ln_learning* result);

/* ---- looking: plans, statistics --------------------------------------------------------------- */

/* Makes the plan of what forward would run (count 0: everything) without running it; it becomes
 * plan `ln_plan_count() - 1` until the next building or running call. Rounds that have run come first. */
int ln_plan_pending(ln_graph*, const int64_t* nodes, int64_t count);
int64_t ln_plan_count(const ln_graph*);
typedef struct {
  int64_t batches, nodes, lower_bound; /* bound: sum over signatures of its longest chain */
  int64_t value_bytes, gradient_bytes, scratch_bytes, peak_bytes, gathered_bytes, read_bytes;
  int executed, from_cache;
} ln_plan_summary;
int ln_plan_get(const ln_graph*, int64_t plan, ln_plan_summary*);
typedef struct {
  int32_t op, signature;
  int64_t members, arguments; /* arguments: operands of the op; a list counts as one */
  int64_t buffer, offset_bytes, bytes;
} ln_plan_batch;
int ln_plan_batch_get(const ln_graph*, int64_t plan, int64_t batch, ln_plan_batch*);
int ln_plan_members(const ln_graph*, int64_t plan, int64_t batch, int32_t* ids); /* `members` node ids */
typedef struct {
  int64_t pieces, bytes;
  int mode; /* 0: adjacent, 1: read through pointers, 2: gathered into scratch, 3: shared */
} ln_plan_operand;
int ln_plan_operand_get(const ln_graph*, int64_t plan, int64_t batch, int64_t operand, ln_plan_operand*);
int64_t ln_plan_buffer_count(const ln_graph*, int64_t plan);
typedef struct {
  int64_t bytes, first_batch, last_batch;
} ln_plan_buffer; /* last -1: until clear */
int ln_plan_buffer_get(const ln_graph*, int64_t plan, int64_t buffer, ln_plan_buffer*);
/* Where a node's value lies: buffer (-1: a parameter's own memory), offset and row stride. */
typedef struct {
  int64_t buffer, offset_bytes, row_stride;
} ln_placement;
int ln_plan_placement(const ln_graph*, int64_t plan, int64_t node, ln_placement*);
const char* ln_signature_text(ln_graph*, int32_t signature); /* "linear W=%3 cols 128" */
/* What a node reads: ids of its arguments; returns how many. */
int64_t ln_node_arguments(const ln_graph*, int64_t node, int32_t* ids, int64_t capacity);

typedef struct {
  int64_t nodes, kernels_forward, kernels_backward, gathers, gathered_bytes, schedules, schedule_cache_hits;
  double schedule_seconds, plan_seconds, forward_seconds, backward_seconds;
} ln_graph_statistics;
int ln_graph_get_statistics(const ln_graph*, ln_graph_statistics*); /* since creation or reset */
int ln_graph_reset_statistics(ln_graph*);
typedef struct {
  size_t bytes_in_use, peak_bytes_in_use, bytes_reserved, largest_free_block, limit;
  int64_t allocations, live_allocations, chunks;
  double fragmentation;
} ln_pool_statistics;
int ln_graph_get_pool_statistics(const ln_graph*, ln_pool_statistics*);
/* Seconds and kernels by op since creation or reset; profiling costs two clock reads a kernel. */
int ln_graph_set_profiling(ln_graph*, int on);
typedef struct {
  double forward_seconds, backward_seconds, gather_seconds;
  int64_t forward_kernels, backward_kernels, nodes;
} ln_op_profile;
int ln_graph_get_profile(const ln_graph*, int op, ln_op_profile*);
/* cdef end */

#ifdef __cplusplus
}
#endif

#endif /* LAZYNET_H_ */
