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
  PyObject* guard;  // Identities with which the trace holds; null: with any
  void release() {
    for (const Token& token : tokens) Py_XDECREF(token.object);
    Py_XDECREF(result);
    Py_XDECREF(guard);
  }
};
constexpr std::size_t kMostVariants = 32;

// What calls have been traced as: of a function, or of the method of one object, which holds them itself.
struct Traces {
  PyObject_HEAD std::vector<Variant>* variants;
  long long version;
  PyObject* owner;  // a weak reference to the object; null of a function
  PyObject* dict;
};

// A cell; or one bound to an object, which is made anew wherever a method is looked up and not called at once, as
// Python's own are.
struct Cell {
  PyObject_HEAD vectorcallfunc vectorcall;
  Traces* traces;
  PyObject* origin;  // of a bound cell the one that it was made from, whose attributes it has
  PyObject* instance;
  PyObject* dict;
  PyObject* weak;
};

long long structure_version = 0;
bool enabled = true;
PyObject *call_name, *traces_name, *cells_name;
PyTypeObject *cell_type = nullptr, *traces_type = nullptr;

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

Variant* find(const Traces& traces, const Flat& flat, bool training) {
  if (traces.version != structure_version) return nullptr;
  for (Variant& variant : *traces.variants)
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

void clear_variants(Traces* traces) {
  std::vector<Variant> gone;
  gone.swap(*traces->variants);  // what is released may run code that calls the cell
  for (Variant& variant : gone) variant.release();
}

PyObject* call_in_python(PyObject* self, PyObject* const* given, size_t count, PyObject* names) {
  PyObject* call = PyObject_GetAttr(self, call_name);
  if (!call) return nullptr;
  PyObject* result = PyObject_Vectorcall(call, given, count, names);
  Py_DECREF(call);
  return result;
}

// What was traced of an object's method is in the object's own attribute, by the cell, because one object may have
// several cells of one name. A new reference; null, without an exception, where there is nothing.
Traces* traces_in(PyObject* instance, PyObject* cell) {
  if (Py_TYPE(instance)->tp_dictoffset == 0) return nullptr;
  PyObject* attributes = PyObject_GenericGetDict(instance, nullptr);  // cheaper than asking for the attribute
  PyObject* cells = attributes ? PyDict_GetItemWithError(attributes, cells_name) : nullptr;
  PyObject* found = cells && PyDict_Check(cells) ? PyDict_GetItemWithError(cells, cell) : nullptr;
  if (!found && PyErr_Occurred()) PyErr_Clear();
  auto* traces = found && Py_TYPE(found) == traces_type ? reinterpret_cast<Traces*>(found) : nullptr;
  // A shallow copy of an object holds what is the object's.
  if (traces && !(traces->owner && PyWeakref_Check(traces->owner) && PyWeakref_GetObject(traces->owner) == instance))
    traces = nullptr;
  Py_XINCREF(traces);
  Py_XDECREF(attributes);
  return traces;
}

// The node of a call like an earlier one; null without an exception where there was none.
PyObject* place(const Traces& traces, PyObject* const* given, Py_ssize_t count) {
  Flat flat;
  if (!flat.take(given, count)) return nullptr;
  NodeObject* first = flat.first();
  const auto& graph = *reinterpret_cast<GraphObject*>(first->graph);
  const Variant* variant = graph.tracing ? nullptr : find(traces, flat, graph.training != 0);
  if (variant && variant->guard && !identities_hold(variant->guard)) variant = nullptr;
  if (!variant) return nullptr;
  int64_t handle = binding.add_cell(first->core, variant->number, flat.handles(), flat.nodes());
  // A failure may only mean that other shapes have come: Python knows what fits them.
  if (handle == LN_FAILED || (handle < 0 && !settle(first->graph, &handle))) return nullptr;
  return outputs_of(*variant, first->graph, first->core, handle);
}

// Called through a class, or by the interpreter, a method has its object as first argument.
PyObject* cell_call(PyObject* object, PyObject* const* given, size_t count, PyObject* names) {
  const auto& self = *reinterpret_cast<Cell*>(object);
  const Py_ssize_t number = PyVectorcall_NARGS(count);
  if (!names && enabled && number > 0) {
    Traces* own = self.instance || is_node(given[0]) ? nullptr : traces_in(given[0], object);
    PyObject* made = own ? place(*own, given + 1, number - 1) : place(*self.traces, given, number);
    Py_XDECREF(own);
    if (made || PyErr_Occurred()) return made;
  }
  return call_in_python(object, given, count, names);
}

// add_variant(arguments as given, training, number, result as returned, outputs, Identities or None): remembers a trace
// for calls like this one, where they can be made here.
PyObject* add_variant(PyObject* object, PyObject* given) {
  auto& self = *reinterpret_cast<Traces*>(object);
  PyObject *arguments, *result, *guard;
  int training, number;
  Py_ssize_t outputs;
  if (!PyArg_ParseTuple(given, "O!piOnO", &PyTuple_Type, &arguments, &training, &number, &result, &outputs, &guard))
    return nullptr;
  if (guard != Py_None && !is_identities(guard)) return PyErr_Format(PyExc_TypeError, "add_variant: no Identities");
  if (self.version != structure_version) {
    clear_variants(&self);
    self.version = structure_version;
  }
  Flat flat;
  bool good = flat.take(&PyTuple_GET_ITEM(arguments, 0), PyTuple_GET_SIZE(arguments));
  // One node, or a tuple with the outputs in order and nothing else; of a named tuple too, which adds no memory.
  good = good && (is_node(result) || (PyTuple_Check(result) && PyTuple_GET_SIZE(result) == outputs &&
                                      Py_TYPE(result)->tp_basicsize == PyTuple_Type.tp_basicsize));
  for (Py_ssize_t k = 0; good && PyTuple_Check(result) && k < outputs; ++k) good = is_node(PyTuple_GET_ITEM(result, k));
  if (!good) Py_RETURN_NONE;
  Variant variant{flat.tokens(), training != 0, number, nullptr, outputs, guard == Py_None ? nullptr : guard};
  if (!is_node(result)) variant.result = Py_TYPE(result);
  Py_XINCREF(variant.result);
  Py_XINCREF(variant.guard);
  for (const Token& token : variant.tokens) Py_XINCREF(token.object);
  Variant* known = find(self, flat, training != 0);  // one a structure: other columns are found by Python
  if (!known && self.variants->size() < kMostVariants) {
    self.variants->push_back(std::move(variant));
    Py_RETURN_NONE;
  }
  // The latest trace takes the place of the one with these arguments, or of the oldest.
  if (!known) {
    std::rotate(self.variants->begin(), self.variants->begin() + 1, self.variants->end());
    known = &self.variants->back();
  }
  std::swap(*known, variant);
  variant.release();
  Py_RETURN_NONE;
}

// ---- life of traces

PyObject* traces_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* made = type->tp_alloc(type, 0);
  if (!made) return nullptr;
  reinterpret_cast<Traces*>(made)->variants = new std::vector<Variant>;
  reinterpret_cast<Traces*>(made)->version = -1;
  return made;
}

int traces_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Traces*>(object);
  for (const Variant& variant : *self->variants) {
    for (const Token& token : variant.tokens) Py_VISIT(token.object);
    Py_VISIT(variant.result);
    Py_VISIT(variant.guard);
  }
  Py_VISIT(self->owner);
  Py_VISIT(self->dict);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

int traces_clear(PyObject* object) {
  auto* self = reinterpret_cast<Traces*>(object);
  clear_variants(self);
  Py_CLEAR(self->owner);
  Py_CLEAR(self->dict);
  return 0;
}

void traces_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  traces_clear(object);
  delete reinterpret_cast<Traces*>(object)->variants;
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

// ---- life of cells

PyObject* cell_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* traces = PyObject_CallObject(reinterpret_cast<PyObject*>(traces_type), nullptr);
  PyObject* made = traces ? type->tp_alloc(type, 0) : nullptr;
  if (!made) {
    Py_XDECREF(traces);
    return nullptr;
  }
  reinterpret_cast<Cell*>(made)->traces = reinterpret_cast<Traces*>(traces);
  reinterpret_cast<Cell*>(made)->vectorcall = cell_call;
  return made;
}

int cell_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Cell*>(object);
  Py_VISIT(self->traces);
  Py_VISIT(self->origin);
  Py_VISIT(self->instance);
  Py_VISIT(self->dict);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

// The traces stay until the end: a cell without them cannot be called.
int cell_clear(PyObject* object) {
  auto* self = reinterpret_cast<Cell*>(object);
  Py_CLEAR(self->instance);
  Py_CLEAR(self->origin);
  Py_CLEAR(self->dict);
  return 0;
}

void cell_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Cell*>(object);
  PyObject_GC_UnTrack(object);
  if (self->weak) PyObject_ClearWeakRefs(object);
  cell_clear(object);
  Py_CLEAR(self->traces);
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

// Takes over the reference to the traces.
PyObject* bound_cell(Cell* origin, PyObject* instance, PyObject* traces) {
  PyObject* made = cell_type->tp_alloc(cell_type, 0);
  if (!made) {
    Py_DECREF(traces);
    return nullptr;
  }
  auto* bound = reinterpret_cast<Cell*>(made);
  bound->vectorcall = cell_call;
  bound->traces = reinterpret_cast<Traces*>(traces);
  bound->origin = reinterpret_cast<PyObject*>(origin);
  bound->instance = instance;
  bound->dict = origin->dict;
  Py_INCREF(bound->origin);
  Py_INCREF(instance);
  Py_XINCREF(bound->dict);
  return made;
}

// As an attribute of a class a cell is a method.
PyObject* cell_get(PyObject* self, PyObject* instance, PyObject*) {
  auto* cell = reinterpret_cast<Cell*>(self);
  if (!instance || instance == Py_None || cell->instance) {
    Py_INCREF(self);
    return self;
  }
  auto* traces = reinterpret_cast<PyObject*>(traces_in(instance, self));
  if (!traces) traces = PyObject_CallMethodObjArgs(self, traces_name, instance, nullptr);
  return traces ? bound_cell(cell, instance, traces) : nullptr;
}

// Bound cells are equal where cell and object are the same.
PyObject* cell_compare(PyObject* a, PyObject* b, int operation) {
  if (Py_TYPE(b) != cell_type || (operation != Py_EQ && operation != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
  const auto *left = reinterpret_cast<Cell*>(a), *right = reinterpret_cast<Cell*>(b);
  const bool same = a == b || (left->instance && left->instance == right->instance && left->origin == right->origin);
  return PyBool_FromLong(same == (operation == Py_EQ));
}

Py_hash_t cell_hash(PyObject* self) {
  const auto* cell = reinterpret_cast<Cell*>(self);
  const auto bits = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) >> 4; };
  const auto hash =
      static_cast<Py_hash_t>(cell->instance ? bits(cell->instance) * 31 + bits(cell->origin) : bits(self));
  return hash == -1 ? -2 : hash;
}

PyMemberDef traces_members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(Traces, dict), READONLY, nullptr},
    {"owner", T_OBJECT, offsetof(Traces, owner), 0, "A weak reference to the object whose method was traced, or None."},
    {nullptr, 0, 0, 0, nullptr},
};
PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Cell, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(Cell, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Cell, weak), READONLY, nullptr},
    {"__self__", T_OBJECT, offsetof(Cell, instance), READONLY, "The object that the cell is bound to, or None."},
    {"_origin", T_OBJECT, offsetof(Cell, origin), READONLY, "Of a bound cell the one that it was made from."},
    {"_traces", T_OBJECT, offsetof(Cell, traces), READONLY, "What calls have been traced as."},
    {nullptr, 0, 0, 0, nullptr},
};
PyMethodDef traces_methods[] = {
    {"add_variant", add_variant, METH_VARARGS, "Remembers a trace for calls with arguments like these."},
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
    {Py_tp_traverse, slot(cell_traverse)},
    {Py_tp_clear, slot(cell_clear)},
    {Py_tp_call, slot(PyVectorcall_Call)},
    {Py_tp_descr_get, slot(cell_get)},
    {Py_tp_richcompare, slot(cell_compare)},
    {Py_tp_hash, slot(cell_hash)},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {0, nullptr},
};
PyType_Spec spec = {"lazynet.Cell", sizeof(Cell), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
                    slots};
PyType_Slot traces_slots[] = {
    {Py_tp_new, slot(traces_new)},
    {Py_tp_dealloc, slot(traces_dealloc)},
    {Py_tp_traverse, slot(traces_traverse)},
    {Py_tp_clear, slot(traces_clear)},
    {Py_tp_members, traces_members},
    {Py_tp_methods, traces_methods},
    {Py_tp_getset, properties},
    {0, nullptr},
};
PyType_Spec traces_spec = {"lazynet._nodes.Traces", sizeof(Traces), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                           traces_slots};

}  // namespace

bool prepare_cell_types(PyTypeObject** cell, PyTypeObject** traces) {
  call_name = PyUnicode_InternFromString("_call");
  traces_name = PyUnicode_InternFromString("_traces_of");
  cells_name = PyUnicode_InternFromString("_lazynet_cells");
  if (!call_name || !traces_name || !cells_name) return false;
  *traces = traces_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&traces_spec));
  *cell = cell_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return traces_type && cell_type;
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
