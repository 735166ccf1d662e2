// Calls of cells: where the arguments are nodes, alone and in tuples and lists, as an earlier call has had them, the
// cell's node is placed without any Python. All else (the first call, other arguments, errors) goes to Cell._call.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "handle.h"

namespace lazynet::python {
namespace {

// What a trace has seen of its arguments, in order: a node (null and 1), a tuple or list (its type and length, then its
// items), anything else (the object itself and -1, compared by identity).
struct Token {
  PyObject* object;
  Py_ssize_t count;
  bool operator==(const Token& other) const { return object == other.object && count == other.count; }
};
struct Variant {
  std::vector<Token> tokens;
  bool training;
  int number;            // of the core's cell
  PyTypeObject* result;  // of the tuple of outputs; null: one node
  Py_ssize_t outputs;
  void release() {
    for (const Token& token : tokens) Py_XDECREF(token.object);
    Py_XDECREF(result);
  }
};
constexpr std::size_t kMostVariants = 32;

struct Cell {
  PyObject_HEAD vectorcallfunc vectorcall;
  std::vector<Variant>* variants;
  long long version;
  PyObject* dict;
  PyObject* weak;
};

long long structure_version = 0;
bool enabled = true;
PyObject *call_name, *bind_name, *cells_name, *key_name;
PyTypeObject* cell_type = nullptr;

// Arguments taken apart; incomplete where there are too many.
class Flat {
 public:
  bool take(PyObject* const* given, Py_ssize_t number) {
    for (Py_ssize_t i = 0; i < number; ++i)
      if (!take(given[i])) return false;
    return nodes_ > 0;
  }
  bool matches(const std::vector<Token>& tokens) const {
    return tokens.size() == static_cast<std::size_t>(count_) && std::equal(tokens.begin(), tokens.end(), tokens_);
  }
  std::vector<Token> tokens() const { return {tokens_, tokens_ + count_}; }
  NodeObject* first() const { return first_; }
  const int64_t* handles() const { return handles_; }
  int nodes() const { return nodes_; }

 private:
  static constexpr int kMostTokens = 64;
  bool take(PyObject* object) {
    if (count_ == kMostTokens) return false;
    if (is_node(object)) {
      if (nodes_ == 0) first_ = node_of(object);
      tokens_[count_++] = {nullptr, 1};
      handles_[nodes_++] = node_of(object)->handle;
      return true;
    }
    if (!PyTuple_Check(object) && !PyList_CheckExact(object)) {
      tokens_[count_++] = {object, -1};
      return true;
    }
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
    tokens_[count_++] = {reinterpret_cast<PyObject*>(Py_TYPE(object)), size};
    for (Py_ssize_t i = 0; i < size; ++i)
      if (!take(PySequence_Fast_GET_ITEM(object, i))) return false;
    return true;
  }

  Token tokens_[kMostTokens];
  int64_t handles_[kMostTokens];
  NodeObject* first_ = nullptr;
  int count_ = 0, nodes_ = 0;
};

const Variant* find(const Cell& cell, const Flat& flat, bool training) {
  if (cell.version != structure_version) return nullptr;
  for (const Variant& variant : *cell.variants)
    if (variant.training == training && flat.matches(variant.tokens)) return &variant;
  return nullptr;
}

PyObject* outputs_of(const Variant& variant, PyObject* graph, ln_graph* core, long long handle) {
  if (!variant.result) return new_node(graph, core, handle);
  PyObject* outputs = variant.result->tp_alloc(variant.result, variant.outputs);
  for (Py_ssize_t k = 0; outputs && k < variant.outputs; ++k) {
    PyObject* made = new_node(graph, core, variant.outputs == 1 ? handle : handle + 1 + k);
    if (!made) Py_CLEAR(outputs);
    if (outputs) PyTuple_SET_ITEM(outputs, k, made);
  }
  return outputs;
}

PyObject* call_in_python(PyObject* self, PyObject* const* given, size_t count, PyObject* names) {
  PyObject* call = PyObject_GetAttr(self, call_name);
  if (!call) return nullptr;
  PyObject* result = PyObject_Vectorcall(call, given, count, names);
  Py_DECREF(call);
  return result;
}

PyObject* cell_call(PyObject* object, PyObject* const* given, size_t count, PyObject* names) {
  const auto& self = *reinterpret_cast<Cell*>(object);
  Flat flat;
  if (!names && enabled && flat.take(given, PyVectorcall_NARGS(count))) {
    NodeObject* first = flat.first();
    const auto& graph = *reinterpret_cast<GraphObject*>(first->graph);
    const Variant* variant = graph.tracing ? nullptr : find(self, flat, graph.training != 0);
    if (variant) {
      int64_t handle = binding.add_cell(first->core, variant->number, flat.handles(), flat.nodes());
      // A failure may only mean that other columns have come: Python knows whether another trace fits them.
      if (handle != LN_FAILED) {
        if (handle < 0 && !settle(first->graph, &handle)) return nullptr;
        return outputs_of(*variant, first->graph, first->core, handle);
      }
    }
  }
  return call_in_python(object, given, count, names);
}

// add_variant(arguments as given, training, number, result as returned): remembers a trace for calls like this one,
// where they can be made here.
PyObject* add_variant(PyObject* object, PyObject* given) {
  auto& self = *reinterpret_cast<Cell*>(object);
  PyObject *arguments, *result;
  int training, number;
  Py_ssize_t outputs;
  if (!PyArg_ParseTuple(given, "O!piOn", &PyTuple_Type, &arguments, &training, &number, &result, &outputs))
    return nullptr;
  if (self.version != structure_version) {
    for (Variant& variant : *self.variants) variant.release();
    self.variants->clear();
    self.version = structure_version;
  }
  Flat flat;
  bool good = self.variants->size() < kMostVariants &&
              flat.take(&PyTuple_GET_ITEM(arguments, 0), PyTuple_GET_SIZE(arguments)) &&
              !find(self, flat, training != 0);  // one a structure: other columns are found by Python
  // One node, or a tuple with the outputs in order and nothing else; of a named tuple too, which adds no memory.
  good = good && (is_node(result) || (PyTuple_Check(result) && PyTuple_GET_SIZE(result) == outputs &&
                                      Py_TYPE(result)->tp_basicsize == PyTuple_Type.tp_basicsize));
  for (Py_ssize_t k = 0; good && PyTuple_Check(result) && k < outputs; ++k) good = is_node(PyTuple_GET_ITEM(result, k));
  if (good) {
    Variant variant{flat.tokens(), training != 0, number, nullptr, outputs};
    if (!is_node(result)) variant.result = Py_TYPE(result);
    Py_XINCREF(variant.result);
    for (const Token& token : variant.tokens) Py_XINCREF(token.object);
    self.variants->push_back(std::move(variant));
  }
  Py_RETURN_NONE;
}

PyObject* cell_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* made = type->tp_alloc(type, 0);
  if (!made) return nullptr;
  reinterpret_cast<Cell*>(made)->variants = new std::vector<Variant>;
  reinterpret_cast<Cell*>(made)->vectorcall = cell_call;
  reinterpret_cast<Cell*>(made)->version = -1;
  return made;
}

void cell_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Cell*>(object);
  if (self->weak) PyObject_ClearWeakRefs(object);
  for (Variant& variant : *self->variants) variant.release();
  delete self->variants;
  Py_CLEAR(self->dict);
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

// As an attribute of a class a cell is a method: each object has a cell of its own, in its attribute _cells.
PyObject* cell_get(PyObject* self, PyObject* instance, PyObject*) {
  if (!instance || instance == Py_None) {
    Py_INCREF(self);
    return self;
  }
  PyObject* cells = PyObject_GetAttr(instance, cells_name);
  PyObject* key = cells ? PyObject_GetAttr(self, key_name) : nullptr;
  PyObject* bound = key && PyDict_Check(cells) ? PyDict_GetItemWithError(cells, key) : nullptr;
  Py_XINCREF(bound);
  Py_XDECREF(cells);
  Py_XDECREF(key);
  if (bound) return bound;
  if (PyErr_Occurred()) PyErr_Clear();
  return PyObject_CallMethodObjArgs(self, bind_name, instance, nullptr);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Cell, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(Cell, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Cell, weak), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyMethodDef methods[] = {
    {"_add_variant", add_variant, METH_VARARGS, "Remembers a trace for calls with arguments like these."},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef properties[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
template <class Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}
PyType_Slot slots[] = {
    {Py_tp_new, slot(cell_new)},
    {Py_tp_dealloc, slot(cell_dealloc)},
    {Py_tp_call, slot(PyVectorcall_Call)},
    {Py_tp_descr_get, slot(cell_get)},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, nullptr},
};
PyType_Spec spec = {"lazynet.Cell", sizeof(Cell), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};

}  // namespace

PyTypeObject* prepare_cell_type() {
  call_name = PyUnicode_InternFromString("_call");
  bind_name = PyUnicode_InternFromString("_bind");
  cells_name = PyUnicode_InternFromString("_cells");
  key_name = PyUnicode_InternFromString("__name__");
  if (!call_name || !bind_name || !cells_name || !key_name) return nullptr;
  cell_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return cell_type;
}

PyObject* note_structure_change(PyObject*, PyObject*) {
  ++structure_version;
  Py_RETURN_NONE;
}

PyObject* current_structure(PyObject*, PyObject*) { return PyLong_FromLongLong(structure_version); }

PyObject* set_cells(PyObject*, PyObject* on) {
  const int truth = PyObject_IsTrue(on);
  if (truth < 0) return nullptr;
  enabled = truth != 0;
  Py_RETURN_NONE;
}

}  // namespace lazynet::python
