// The module lazynet._nodes: its types, bind(), and the building functions that lazynet/nodes/ calls.
#include <vector>

#include "handle.h"

namespace lazynet::python {
namespace {

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

bool append_operand(std::vector<int64_t>* handles, PyObject* operand) {
  handles->push_back(0);
  if (operand_handle(operand, &handles->back())) return true;
  PyErr_Format(PyExc_AttributeError, "%s is neither a node nor a parameter", Py_TYPE(operand)->tp_name);
  return false;
}

// build(graph, op, operands, attributes, payload) -> node
PyObject* build(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5 || !PyObject_TypeCheck(arguments[0], &graph_type))
    return PyErr_Format(PyExc_AttributeError, "build: a graph and four more arguments are required");
  // Kept between calls so that building allocates nothing.
  static thread_local std::vector<int64_t> handles, payload;
  static thread_local std::vector<double> attributes;
  handles.clear();
  payload.clear();
  attributes.clear();
  const long op = PyLong_AsLong(arguments[1]);
  if (PyErr_Occurred()) return nullptr;
  const bool good = for_items(arguments[2], [](PyObject* item) { return append_operand(&handles, item); }) &&
                    for_items(arguments[3],
                              [](PyObject* item) {
                                attributes.push_back(PyFloat_AsDouble(item));
                                return !(attributes.back() == -1.0 && PyErr_Occurred());
                              }) &&
                    for_items(arguments[4], [](PyObject* item) {
                      payload.push_back(PyLong_AsLongLong(item));
                      return !(payload.back() == -1 && PyErr_Occurred());
                    });
  if (!good) return nullptr;
  ln_graph* core = reinterpret_cast<GraphObject*>(arguments[0])->core;
  const int64_t handle =
      binding.add(core, static_cast<int>(op), handles.data(), static_cast<int>(handles.size()), attributes.data(),
                  static_cast<int>(attributes.size()), payload.data(), static_cast<int64_t>(payload.size()));
  return finish(arguments[0], core, handle, arguments[2]);
}

// shape(node) -> (rows, cols)
PyObject* shape(PyObject*, PyObject* node) {
  if (!is_node(node)) return PyErr_Format(PyExc_AttributeError, "shape: a node is required");
  const NodeObject* x = node_of(node);
  int64_t sizes[2], failed = LN_FAILED;
  if (binding.node_shape(x->core, x->handle, sizes) < 0) {
    settle(x->graph, &failed);  // raises
    return nullptr;
  }
  return Py_BuildValue("LL", static_cast<long long>(sizes[0]), static_cast<long long>(sizes[1]));
}

// parts(node, axis, number) -> list of nodes
PyObject* parts(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3 || !is_node(arguments[0])) return PyErr_Format(PyExc_AttributeError, "parts: a node is required");
  const NodeObject* x = node_of(arguments[0]);
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

template <class Function>
void set_address(Function* function, long long address) {
  *function = reinterpret_cast<Function>(static_cast<std::intptr_t>(address));
}

// bind(addresses of ln_add2, ln_add, ln_add_part, ln_add_row, ln_add_cell, ln_node_shape, op ids of add, sub, mul, div,
// arithmetic, subscript)
PyObject* bind(PyObject*, PyObject* arguments) {
  long long add2, add, part, row, cell, node_shape;
  PyObject *arithmetic, *subscript;
  int* ops = binding.operators;
  if (!PyArg_ParseTuple(arguments, "LLLLLLiiiiOO", &add2, &add, &part, &row, &cell, &node_shape, &ops[0], &ops[1],
                        &ops[2], &ops[3], &arithmetic, &subscript))
    return nullptr;
  set_address(&binding.add2, add2);
  set_address(&binding.add, add);
  set_address(&binding.add_part, part);
  set_address(&binding.add_row, row);
  set_address(&binding.add_cell, cell);
  set_address(&binding.node_shape, node_shape);
  Py_INCREF(arithmetic);
  binding.arithmetic = arithmetic;
  Py_INCREF(subscript);
  binding.subscript = subscript;
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, "Takes over the core's functions and what is left to Python."},
    {"build", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(build)), METH_FASTCALL,
     "build(graph, op, operands, attributes, payload): the node of an operator."},
    {"shape", shape, METH_O, "shape(node): its rows and columns."},
    {"parts", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(parts)), METH_FASTCALL,
     "parts(node, axis, number): a list of equal parts, which are views."},
    {"note_structure_change", note_structure_change, METH_NOARGS, "From now on cells are traced again."},
    {"current_structure", current_structure, METH_NOARGS, "How often note_structure_change() was called."},
    {"set_cells", set_cells, METH_O, "Whether calls of cells place one node."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_nodes", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

bool add_type(PyObject* to, const char* name, PyTypeObject* type) {
  Py_INCREF(type);
  return PyModule_AddObject(to, name, reinterpret_cast<PyObject*>(type)) == 0;
}

}  // namespace
}  // namespace lazynet::python

PyMODINIT_FUNC PyInit__nodes(void) {
  using namespace lazynet::python;
  PyTypeObject *cell_type, *traces_type, *identities_type;
  if (!prepare_handle_types() || !prepare_operator_type() || !prepare_cell_types(&cell_type, &traces_type) ||
      !(identities_type = prepare_identities_type()))
    return nullptr;
  PyObject* made = PyModule_Create(&module);
  if (!made || !add_type(made, "CoreGraph", &graph_type) || !add_type(made, "CoreParameter", &parameter_type) ||
      !add_type(made, "Node", node_type) || !add_type(made, "Operator", &operator_type) ||
      !add_type(made, "Cell", cell_type) || !add_type(made, "Traces", traces_type) ||
      !add_type(made, "Identities", identities_type))
    return nullptr;
  return made;
}
