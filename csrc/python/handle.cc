#include "handle.h"

#include <cstddef>

namespace lazynet::python {

Binding binding;

namespace {

constexpr const char* kOperators[] = {"add", "sub", "mul", "div"};
PyObject* settle_name;  // "_settle"

// Nodes come and go by the hundred thousand a second: the memory of those that went is kept for those to come.
// The interpreter lock guards it.
constexpr int kKept = 4096;
NodeObject* kept[kKept];
int kept_count = 0;

// There is no node without a graph, so arguments are taken here and not in __init__.
PyObject* node_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject* graph;
  long long handle;
  if (!PyArg_ParseTuple(arguments, "O!L", &graph_type, &graph, &handle)) return nullptr;
  PyObject* made = type->tp_alloc(type, 0);
  if (!made) return nullptr;
  Py_INCREF(graph);
  node_of(made)->graph = graph;
  node_of(made)->core = reinterpret_cast<GraphObject*>(graph)->core;
  node_of(made)->handle = handle;
  return made;
}

void node_dealloc(PyObject* self) {
  Py_CLEAR(node_of(self)->graph);
  if (kept_count < kKept) {
    kept[kept_count++] = node_of(self);  // with its reference to the type
    return;
  }
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

template <int kOperator>
PyObject* operate(PyObject* a, PyObject* b) {
  if (is_node(a) && is_node(b)) {
    NodeObject* left = node_of(a);
    return finish(left->graph, left->core,
                  binding.add2(left->core, binding.operators[kOperator], left->handle, node_of(b)->handle), b);
  }
  if (!binding.arithmetic) Py_RETURN_NOTIMPLEMENTED;
  return PyObject_CallFunction(binding.arithmetic, "sOO", kOperators[kOperator], a, b);
}

PyObject* subscript(PyObject* self, PyObject* index) {
  if (PyLong_CheckExact(index)) {
    int overflow = 0;
    const long long row = PyLong_AsLongLongAndOverflow(index, &overflow);
    NodeObject* x = node_of(self);
    if (!overflow) return finish(x->graph, x->core, binding.add_row(x->core, x->handle, row));
  }
  return PyObject_CallFunctionObjArgs(binding.subscript, self, index, nullptr);
}

PyMemberDef graph_members[] = {
    {"_address", T_LONGLONG, offsetof(GraphObject, core), 0, "Address of the core's graph."},
    {"training", T_BOOL, offsetof(GraphObject, training), 0,
     "Whether values are kept for backward, and dropout is on."},
    {"_tracing", T_BOOL, offsetof(GraphObject, tracing), 0, "Whether the graph records what a cell does."},
    {nullptr, 0, 0, 0, nullptr},
};
PyMemberDef parameter_members[] = {
    {"_handle", T_LONGLONG, offsetof(ParameterObject, handle), 0, "The core's number of the parameter."},
    {nullptr, 0, 0, 0, nullptr},
};
PyMemberDef node_members[] = {
    {"graph", T_OBJECT_EX, offsetof(NodeObject, graph), READONLY, "The graph that owns the node."},
    {"_handle", T_LONGLONG, offsetof(NodeObject, handle), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
template <class Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}
// Nodes take no part in garbage collection, which would look at every one of them again and again: all that
// they hold is the graph, and a graph holds no nodes (lazynet.Graph has no room for attributes of others).
PyType_Slot node_slots[] = {
    {Py_tp_new, slot(node_new)},           {Py_tp_dealloc, slot(node_dealloc)}, {Py_tp_members, node_members},
    {Py_nb_add, slot(operate<0>)},         {Py_nb_subtract, slot(operate<1>)},  {Py_nb_multiply, slot(operate<2>)},
    {Py_nb_true_divide, slot(operate<3>)}, {Py_mp_subscript, slot(subscript)},  {0, nullptr},
};
PyType_Spec node_spec = {"lazynet.Node", sizeof(NodeObject), 0, Py_TPFLAGS_DEFAULT, node_slots};

PyObject* new_parameter(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* made = type->tp_alloc(type, 0);
  // Until Parameter.__init__ has run: a number that no parameter has.
  if (made) reinterpret_cast<ParameterObject*>(made)->handle = -(1ll << 62);
  return made;
}

bool ready(PyTypeObject* type, const char* doc, std::size_t size, PyMemberDef* members, newfunc make) {
  type->tp_basicsize = static_cast<Py_ssize_t>(size);
  type->tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
  type->tp_doc = doc;
  type->tp_members = members;
  type->tp_new = make;
  return PyType_Ready(type) == 0;
}

}  // namespace

PyTypeObject graph_type = {PyVarObject_HEAD_INIT(nullptr, 0) "lazynet._nodes.CoreGraph"};
PyTypeObject parameter_type = {PyVarObject_HEAD_INIT(nullptr, 0) "lazynet._nodes.CoreParameter"};
PyTypeObject* node_type = nullptr;

bool prepare_handle_types() {
  settle_name = PyUnicode_InternFromString("_settle");
  if (!settle_name ||
      !ready(&graph_type, "The base of lazynet.Graph.", sizeof(GraphObject), graph_members, PyType_GenericNew) ||
      !ready(&parameter_type, "The base of lazynet.Parameter.", sizeof(ParameterObject), parameter_members,
             new_parameter))
    return false;
  node_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&node_spec));
  return node_type != nullptr;
}

PyObject* new_node(PyObject* graph, ln_graph* core, long long handle) {
  PyObject* made;
  if (kept_count > 0) {
    made = reinterpret_cast<PyObject*>(kept[--kept_count]);
    Py_SET_REFCNT(made, 1);
  } else {
    made = node_type->tp_alloc(node_type, 0);
    if (!made) return nullptr;
  }
  Py_INCREF(graph);
  node_of(made)->graph = graph;
  node_of(made)->core = core;
  node_of(made)->handle = handle;
  return made;
}

bool settle(PyObject* graph, int64_t* handle, PyObject* others) {
  PyObject* number = PyLong_FromLongLong(*handle);
  if (!number) return false;
  PyObject* settled = PyObject_CallMethodObjArgs(graph, settle_name, number, others, nullptr);
  Py_DECREF(number);
  if (!settled) return false;
  *handle = PyLong_AsLongLong(settled);
  Py_DECREF(settled);
  return !(*handle == -1 && PyErr_Occurred());
}

PyObject* finish(PyObject* graph, ln_graph* core, int64_t handle, PyObject* others) {
  if (handle < 0 && !settle(graph, &handle, others)) return nullptr;
  return new_node(graph, core, handle);
}

}  // namespace lazynet::python
