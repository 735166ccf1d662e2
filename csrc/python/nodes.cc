// The light handle of a node, and the building calls that a model makes most, as a CPython extension: a call
// through cffi converts every argument and gives up the interpreter lock, which costs several times what the
// core needs to add a node. It talks to the core through the functions of lazynet.h only, whose addresses
// lazynet/_core.py hands over, so that there is one core in the process. Anything out of the ordinary (an
// argument that is no node, an error, tracing) goes to Python functions that are handed over as well.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../lazynet.h"

namespace {

struct Handle {
  PyObject_HEAD PyObject* graph;
  ln_graph* core;  // owned by graph
  long long handle;
};

// What bind() sets once, when the package is imported.
struct Binding {
  decltype(&ln_add1) add1;
  decltype(&ln_add2) add2;
  decltype(&ln_add) add;
  decltype(&ln_add_part) add_part;
  PyTypeObject* node_type;  // lazynet.Node, a subclass of Handle
  PyObject* arithmetic;     // arithmetic(name, a, b): an operator one of whose operands is no node
  int ops[4];               // add, sub, mul, div
} binding;

constexpr const char* kOperators[] = {"add", "sub", "mul", "div"};
PyObject* handle_name;  // "_handle"
PyObject* settle_name;  // "_settle"

Handle* node_of(PyObject* object) { return reinterpret_cast<Handle*>(object); }
// A handle that was made without __init__ (Node.__new__) has no graph and is no node.
bool is_node(PyObject* object) {
  return binding.node_type && PyObject_TypeCheck(object, binding.node_type) && node_of(object)->graph;
}

PyObject* new_node(PyObject* graph, ln_graph* core, long long handle) {
  PyObject* made = binding.node_type->tp_alloc(binding.node_type, 0);
  if (!made) return nullptr;
  Py_INCREF(graph);
  node_of(made)->graph = graph;
  node_of(made)->core = core;
  node_of(made)->handle = handle;
  return made;
}

// The node of what a building function returned; graph._settle() knows what a negative number means.
PyObject* finish(PyObject* graph, ln_graph* core, int64_t handle, PyObject* other = nullptr) {
  if (handle >= 0) return new_node(graph, core, handle);
  PyObject* number = PyLong_FromLongLong(handle);
  if (!number) return nullptr;
  PyObject* settled = PyObject_CallMethodObjArgs(graph, settle_name, number, other, nullptr);
  Py_DECREF(number);
  if (!settled) return nullptr;
  const long long value = PyLong_AsLongLong(settled);
  Py_DECREF(settled);
  if (value == -1 && PyErr_Occurred()) return nullptr;
  return new_node(graph, core, value);
}

// ---- the handle

int handle_init(PyObject* self, PyObject* arguments, PyObject*) {
  PyObject* graph;
  long long core, handle;
  if (!PyArg_ParseTuple(arguments, "OLL", &graph, &core, &handle)) return -1;
  Py_INCREF(graph);
  Py_XSETREF(node_of(self)->graph, graph);
  node_of(self)->core = reinterpret_cast<ln_graph*>(static_cast<std::intptr_t>(core));
  node_of(self)->handle = handle;
  return 0;
}

void handle_dealloc(PyObject* self) {
  Py_XDECREF(node_of(self)->graph);
  Py_TYPE(self)->tp_free(self);
}

template <int kOperator>
PyObject* operate(PyObject* a, PyObject* b) {
  if (is_node(a) && is_node(b)) {
    Handle* left = node_of(a);
    return finish(left->graph, left->core,
                  binding.add2(left->core, binding.ops[kOperator], left->handle, node_of(b)->handle), b);
  }
  if (!binding.arithmetic) Py_RETURN_NOTIMPLEMENTED;
  return PyObject_CallFunction(binding.arithmetic, "sOO", kOperators[kOperator], a, b);
}

PyMemberDef handle_members[] = {
    {"graph", T_OBJECT_EX, offsetof(Handle, graph), READONLY, "The graph that owns the node."},
    {"_handle", T_LONGLONG, offsetof(Handle, handle), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyNumberMethods handle_numbers = {};
PyTypeObject handle_type = {PyVarObject_HEAD_INIT(nullptr, 0) "lazynet._nodes.Handle"};

void prepare_handle_type() {
  handle_numbers.nb_add = operate<0>;
  handle_numbers.nb_subtract = operate<1>;
  handle_numbers.nb_multiply = operate<2>;
  handle_numbers.nb_true_divide = operate<3>;
  handle_type.tp_basicsize = sizeof(Handle);
  handle_type.tp_dealloc = handle_dealloc;
  handle_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
  handle_type.tp_doc = "Graph and number of a node; the base of lazynet.Node.";
  handle_type.tp_members = handle_members;
  handle_type.tp_as_number = &handle_numbers;
  handle_type.tp_init = handle_init;
  handle_type.tp_new = PyType_GenericNew;
}

// ---- unary operators: callables that stand in for the Python function of the same name

struct Unary {
  PyObject_HEAD vectorcallfunc vectorcall;
  int op;
  PyObject* dict;      // __doc__, __name__, __wrapped__ ... of the function
  PyObject* function;  // called for anything but one node
};

PyObject* unary_call(PyObject* self, PyObject* const* arguments, size_t count, PyObject* names) {
  auto* unary = reinterpret_cast<Unary*>(self);
  if (PyVectorcall_NARGS(count) == 1 && !names && is_node(arguments[0])) {
    Handle* x = node_of(arguments[0]);
    return finish(x->graph, x->core, binding.add1(x->core, unary->op, x->handle));
  }
  return PyObject_Vectorcall(unary->function, arguments, count, names);
}

int unary_init(PyObject* self, PyObject* arguments, PyObject*) {
  auto* unary = reinterpret_cast<Unary*>(self);
  PyObject* function;
  if (!PyArg_ParseTuple(arguments, "iO", &unary->op, &function)) return -1;
  Py_INCREF(function);
  Py_XSETREF(unary->function, function);
  unary->vectorcall = unary_call;
  return 0;
}

void unary_dealloc(PyObject* self) {
  Py_XDECREF(reinterpret_cast<Unary*>(self)->function);
  Py_XDECREF(reinterpret_cast<Unary*>(self)->dict);
  Py_TYPE(self)->tp_free(self);
}

PyGetSetDef unary_properties[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyTypeObject unary_type = {PyVarObject_HEAD_INIT(nullptr, 0) "lazynet._nodes.Unary"};

void prepare_unary_type() {
  unary_type.tp_basicsize = sizeof(Unary);
  unary_type.tp_dealloc = unary_dealloc;
  unary_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  unary_type.tp_vectorcall_offset = offsetof(Unary, vectorcall);
  unary_type.tp_call = PyVectorcall_Call;
  unary_type.tp_getset = unary_properties;
  unary_type.tp_dictoffset = offsetof(Unary, dict);
  unary_type.tp_init = unary_init;
  unary_type.tp_new = PyType_GenericNew;
}

// ---- the general builder

bool append_operand(std::vector<int64_t>* handles, PyObject* operand) {
  if (is_node(operand)) {
    handles->push_back(node_of(operand)->handle);
    return true;
  }
  PyObject* number = PyObject_GetAttr(operand, handle_name);  // AttributeError: no node and no parameter
  if (!number) return false;
  handles->push_back(PyLong_AsLongLong(number));
  Py_DECREF(number);
  return !PyErr_Occurred();
}

// Calls append(item) for the items of a list or tuple; false with an exception set.
template <class Function>
bool for_items(PyObject* sequence, const Function& append) {
  PyObject* items = PySequence_Fast(sequence, "a list or a tuple is required");
  if (!items) return false;
  bool good = true;
  for (Py_ssize_t i = 0; good && i < PySequence_Fast_GET_SIZE(items); ++i)
    good = append(PySequence_Fast_GET_ITEM(items, i));
  Py_DECREF(items);
  return good;
}

// build(graph, core, op, operands, attributes, payload) -> node
PyObject* build(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 6) return PyErr_Format(PyExc_TypeError, "build: 6 arguments are required");
  // Kept between calls so that building allocates nothing.
  static thread_local std::vector<int64_t> handles, payload;
  static thread_local std::vector<double> attributes;
  handles.clear();
  payload.clear();
  attributes.clear();
  const long long core = PyLong_AsLongLong(arguments[1]);
  const long op = PyLong_AsLong(arguments[2]);
  if (PyErr_Occurred()) return nullptr;
  const bool good = for_items(arguments[3], [](PyObject* item) { return append_operand(&handles, item); }) &&
                    for_items(arguments[4],
                              [](PyObject* item) {
                                attributes.push_back(PyFloat_AsDouble(item));
                                return !(attributes.back() == -1.0 && PyErr_Occurred());
                              }) &&
                    for_items(arguments[5], [](PyObject* item) {
                      payload.push_back(PyLong_AsLongLong(item));
                      return !(payload.back() == -1 && PyErr_Occurred());
                    });
  if (!good) return nullptr;
  auto* graph = reinterpret_cast<ln_graph*>(static_cast<std::intptr_t>(core));
  const int64_t handle =
      binding.add(graph, static_cast<int>(op), handles.data(), static_cast<int>(handles.size()), attributes.data(),
                  static_cast<int>(attributes.size()), payload.data(), static_cast<int64_t>(payload.size()));
  return finish(arguments[0], graph, handle, arguments[3]);
}

// parts(node, axis, parts) -> list of nodes
PyObject* parts(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3 || !is_node(arguments[0])) return PyErr_Format(PyExc_AttributeError, "parts: a node is required");
  const Handle* x = node_of(arguments[0]);
  const long axis = PyLong_AsLong(arguments[1]);
  const long long number = PyLong_AsLongLong(arguments[2]);
  if (PyErr_Occurred()) return nullptr;
  PyObject* list = PyList_New(0);
  // Zero parts are asked for once, so that the core says what is wrong with that.
  for (long long part = 0; list && part < (number > 0 ? number : 1); ++part) {
    PyObject* made =
        finish(x->graph, x->core, binding.add_part(x->core, x->handle, static_cast<int>(axis), part, number));
    if (!made || PyList_Append(list, made) < 0) Py_CLEAR(list);
    Py_XDECREF(made);
  }
  return list;
}

// bind(addresses of ln_add1, ln_add2, ln_add, ln_add_part, op ids of add, sub, mul, div, arithmetic, node type)
PyObject* bind(PyObject*, PyObject* arguments) {
  long long add1, add2, add, part;
  PyObject *arithmetic, *type;
  if (!PyArg_ParseTuple(arguments, "LLLLiiiiOO", &add1, &add2, &add, &part, &binding.ops[0], &binding.ops[1],
                        &binding.ops[2], &binding.ops[3], &arithmetic, &type))
    return nullptr;
  binding.add1 = reinterpret_cast<decltype(&ln_add1)>(static_cast<std::intptr_t>(add1));
  binding.add2 = reinterpret_cast<decltype(&ln_add2)>(static_cast<std::intptr_t>(add2));
  binding.add = reinterpret_cast<decltype(&ln_add)>(static_cast<std::intptr_t>(add));
  binding.add_part = reinterpret_cast<decltype(&ln_add_part)>(static_cast<std::intptr_t>(part));
  Py_INCREF(arithmetic);
  Py_INCREF(type);
  binding.arithmetic = arithmetic;
  binding.node_type = reinterpret_cast<PyTypeObject*>(type);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, "Takes the core's functions and the class of nodes over."},
    {"build", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(build)), METH_FASTCALL,
     "build(graph, core, op, operands, attributes, payload): the node of an operator."},
    {"parts", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(parts)), METH_FASTCALL,
     "parts(node, axis, number): a list of equal parts, which are views."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_nodes", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__nodes(void) {
  prepare_handle_type();
  prepare_unary_type();
  handle_name = PyUnicode_InternFromString("_handle");
  settle_name = PyUnicode_InternFromString("_settle");
  if (!handle_name || !settle_name || PyType_Ready(&handle_type) < 0 || PyType_Ready(&unary_type) < 0) return nullptr;
  PyObject* made = PyModule_Create(&module);
  if (!made) return nullptr;
  Py_INCREF(&handle_type);
  Py_INCREF(&unary_type);
  if (PyModule_AddObject(made, "Handle", reinterpret_cast<PyObject*>(&handle_type)) < 0 ||
      PyModule_AddObject(made, "Unary", reinterpret_cast<PyObject*>(&unary_type)) < 0)
    return nullptr;
  return made;
}
