// Operator: a callable that stands in for a Python function that builds a node. It builds the node itself where
// the arguments are as they almost always are (nodes, parameters, one id, plain numbers), and calls the function
// for anything else, errors included, so that there is one place for each rule and for each message.
#include <cstddef>
#include <vector>

#include "handle.h"

namespace lazynet::python {
namespace {

// What an argument may be for the node to be built here; the letters are those of lazynet/nodes/opdef.py.
enum Kind : char {
  kNode = 'n',       // the first operand, which says in which graph
  kOperand = 'o',    // a node or a parameter
  kOptional = 'p',   // "; None or left out: no operand
  kNodes = 'l',      // a list or tuple of nodes, at least one, which says in which graph
  kGraph = 'g',      // says in which graph
  kId = 'i',         // an integer of payload, at least 0
  kAttribute = 'a',  // a number; left out: its default
  kPreset = 'd',     // an attribute that is left out
  kChoice = 'c',     // an integer from 0 that chooses among several operators; left out: its default
  kWord = 'w',       // one of some words, which make no difference
};

struct Argument {
  PyObject* name;  // interned
  char kind;
  double preset;    // of an attribute or a choice
  PyObject* words;  // of a word: a tuple of interned strings
};

struct Operator {
  PyObject_HEAD vectorcallfunc vectorcall;
  std::vector<Argument>* arguments;
  std::vector<int>* ops;
  Py_ssize_t positional;  // arguments that may be given without their name
  PyObject* function;
  PyObject* dict;  // __doc__, __name__, __wrapped__ ... of the function
};

constexpr int kMostArguments = 8;

// What is collected for ln_add; lists longer than the array take the vector.
struct Call {
  PyObject* graph = nullptr;
  ln_graph* core = nullptr;
  int64_t operands[kMostArguments];
  const int64_t* list = operands;
  int count = 0;
  double attributes[kMostArguments];
  int attribute_count = 0;
  int64_t id = 0;
  int64_t ids = 0;
  int choice = 0;
};

bool take_graph(PyObject* node, Call* call) {
  if (!is_node(node)) return false;
  if (!call->graph) {
    call->graph = node_of(node)->graph;
    call->core = node_of(node)->core;
  }
  return true;
}

bool take_list(PyObject* value, Call* call) {
  if (!value || !(PyList_CheckExact(value) || PyTuple_CheckExact(value))) return false;
  static thread_local std::vector<int64_t> handles;  // kept, so that building allocates nothing
  handles.clear();
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
  PyObject** items = PySequence_Fast_ITEMS(value);
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!take_graph(items[i], call)) return false;
    handles.push_back(node_of(items[i])->handle);
  }
  call->list = handles.data();
  call->count = static_cast<int>(size);
  return size > 0;
}

// A small integer of the exact type; false for anything else.
bool take_integer(PyObject* value, int64_t* integer) {
  if (!value || !PyLong_CheckExact(value)) return false;
  int overflow = 0;
  *integer = PyLong_AsLongLongAndOverflow(value, &overflow);
  return !overflow;
}

bool take_number(PyObject* value, double preset, double* number) {
  int64_t integer;
  if (!value)
    *number = preset;
  else if (PyFloat_CheckExact(value))
    *number = PyFloat_AS_DOUBLE(value);
  else if (value == Py_True || value == Py_False)
    *number = value == Py_True;
  else if (take_integer(value, &integer))
    *number = static_cast<double>(integer);
  else
    return false;
  return true;
}

bool one_of(PyObject* words, PyObject* value) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(words); ++i)
    if (PyTuple_GET_ITEM(words, i) == value) return true;
  return false;
}

bool take(const Argument& argument, PyObject* value, Call* call) {
  switch (argument.kind) {
    case kNode:
      if (!value || !take_graph(value, call)) return false;
      call->operands[call->count++] = node_of(value)->handle;
      return true;
    case kOptional:
      if (!value || value == Py_None) return true;
      [[fallthrough]];
    case kOperand:
      return value && operand_handle(value, &call->operands[call->count++]);
    case kNodes:
      return take_list(value, call);
    case kGraph:
      if (!value || !PyObject_TypeCheck(value, &graph_type)) return false;
      call->graph = value;
      call->core = reinterpret_cast<GraphObject*>(value)->core;
      return call->core != nullptr;
    case kId:
      call->ids = 1;
      return take_integer(value, &call->id) && call->id >= 0;
    case kAttribute:
      return take_number(value, argument.preset, &call->attributes[call->attribute_count++]);
    case kPreset:
      call->attributes[call->attribute_count++] = argument.preset;
      return value == nullptr;
    case kChoice: {
      int64_t choice = static_cast<int64_t>(argument.preset);
      if (value && !take_integer(value, &choice)) return false;
      call->choice = static_cast<int>(choice);
      return choice == call->choice;
    }
    case kWord:
      return !value || one_of(argument.words, value);
    default:
      return false;
  }
}

// Sorts what was given under the names of the arguments.
bool arrange(const Operator& self, PyObject* const* given, Py_ssize_t positional, PyObject* names, PyObject** values) {
  const std::vector<Argument>& arguments = *self.arguments;
  if (positional > self.positional) return false;
  for (Py_ssize_t i = 0; i < positional; ++i) values[i] = given[i];
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i) {
    const PyObject* name = PyTuple_GET_ITEM(names, i);
    std::size_t k = static_cast<std::size_t>(positional);
    while (k < arguments.size() && arguments[k].name != name) ++k;
    if (k == arguments.size()) return false;
    values[k] = given[positional + i];
  }
  return true;
}

PyObject* operator_call(PyObject* object, PyObject* const* given, size_t count, PyObject* names) {
  const auto& self = *reinterpret_cast<Operator*>(object);
  PyObject* values[kMostArguments] = {};
  Call call;
  bool good = arrange(self, given, PyVectorcall_NARGS(count), names, values);
  for (std::size_t k = 0; good && k < self.arguments->size(); ++k) good = take((*self.arguments)[k], values[k], &call);
  if (good && call.graph && call.choice >= 0 && call.choice < static_cast<int>(self.ops->size())) {
    const int64_t handle = binding.add(call.core, (*self.ops)[call.choice], call.list, call.count, call.attributes,
                                       call.attribute_count, &call.id, call.ids);
    if (handle != LN_FAILED) return finish(call.graph, call.core, handle);
  }
  return PyObject_Vectorcall(self.function, given, count, names);
}

// Operator(ops, positional, function, arguments); each argument is (name, kind, preset, words).
int operator_init(PyObject* object, PyObject* given, PyObject*) {
  auto* self = reinterpret_cast<Operator*>(object);
  PyObject *ops, *function, *arguments;
  if (!PyArg_ParseTuple(given, "O!nOO!", &PyTuple_Type, &ops, &self->positional, &function, &PyTuple_Type, &arguments))
    return -1;
  if (PyTuple_GET_SIZE(arguments) > kMostArguments) {
    PyErr_Format(PyExc_ValueError, "Operator: at most %d arguments are possible", kMostArguments);
    return -1;
  }
  delete self->arguments;
  delete self->ops;
  self->arguments = new std::vector<Argument>;
  self->ops = new std::vector<int>;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ops); ++i)
    self->ops->push_back(static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(ops, i))));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
    PyObject *name, *words;
    const char* kind;
    double preset;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(arguments, i), "UsdO!", &name, &kind, &preset, &PyTuple_Type, &words))
      return -1;
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name);
    Py_INCREF(words);  // operators live as long as the process
    self->arguments->push_back({name, *kind, preset, words});
  }
  Py_INCREF(function);
  Py_XSETREF(self->function, function);
  self->vectorcall = operator_call;
  return PyErr_Occurred() ? -1 : 0;
}

void operator_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Operator*>(object);
  delete self->arguments;
  delete self->ops;
  Py_XDECREF(self->function);
  Py_XDECREF(self->dict);
  Py_TYPE(object)->tp_free(object);
}

// Copies are the operator itself, pickles its name.
PyObject* operator_reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

PyMethodDef operator_methods[] = {
    {"__reduce__", operator_reduce, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef operator_properties[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

PyTypeObject operator_type = {PyVarObject_HEAD_INIT(nullptr, 0) "lazynet._nodes.Operator"};

bool prepare_operator_type() {
  operator_type.tp_basicsize = sizeof(Operator);
  operator_type.tp_dealloc = operator_dealloc;
  operator_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  operator_type.tp_doc = "A function that builds a node; it has the docstring and signature of its Python form.";
  operator_type.tp_vectorcall_offset = offsetof(Operator, vectorcall);
  operator_type.tp_call = PyVectorcall_Call;
  operator_type.tp_methods = operator_methods;
  operator_type.tp_getset = operator_properties;
  operator_type.tp_dictoffset = offsetof(Operator, dict);
  operator_type.tp_init = operator_init;
  operator_type.tp_new = PyType_GenericNew;
  return PyType_Ready(&operator_type) == 0;
}

}  // namespace lazynet::python
