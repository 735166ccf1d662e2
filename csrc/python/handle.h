// What the files of the CPython extension share: the objects that stand for the core's graphs, parameters and
// nodes, and how a node object is made from what a building function returned.
//
// The extension exists because a call through cffi converts every argument and gives up the interpreter lock,
// which costs several times what the core needs to add a node. It reaches the core through the functions of
// lazynet.h only, whose addresses lazynet/graph.py hands over, so that there is one core in the process.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <cstdint>

#include "../lazynet.h"

namespace lazynet::python {

// The base of lazynet.Graph.
struct GraphObject {
  PyObject_HEAD ln_graph* core;  // null until Graph.__init__ has run
  char training;
  char tracing;  // it records what a cell does
};

// The base of lazynet.Parameter.
struct ParameterObject {
  PyObject_HEAD long long handle;
};

// A lazynet.Node.
struct NodeObject {
  PyObject_HEAD PyObject* graph;
  ln_graph* core;  // owned by graph
  long long handle;
};

// What bind() sets once, when the package is imported.
struct Binding {
  decltype(&ln_add2) add2;
  decltype(&ln_add) add;
  decltype(&ln_add_part) add_part;
  decltype(&ln_add_row) add_row;
  decltype(&ln_add_cell) add_cell;
  decltype(&ln_node_shape) node_shape;
  int operators[4];      // add, sub, mul, div
  PyObject* arithmetic;  // arithmetic(name, a, b): an operator one of whose operands is no node
  PyObject* subscript;   // subscript(node, index): an index that is no integer
};
extern Binding binding;

extern PyTypeObject graph_type, parameter_type, operator_type;
extern PyTypeObject* node_type;
bool prepare_handle_types();                                          // false: with an exception set
bool prepare_operator_type();                                         // "
bool prepare_cell_types(PyTypeObject** cell, PyTypeObject** traces);  // "
PyTypeObject* prepare_identities_type();
bool is_identities(PyObject* object);
bool identities_hold(PyObject* object);  // no exception is set
PyObject* note_structure_change(PyObject*, PyObject*);
PyObject* current_structure(PyObject*, PyObject*);
PyObject* set_cells(PyObject*, PyObject* on);

inline NodeObject* node_of(PyObject* object) { return reinterpret_cast<NodeObject*>(object); }
inline bool is_node(PyObject* object) { return Py_TYPE(object) == node_type; }  // it has no subclasses

// The handle of a node or a parameter.
inline bool operand_handle(PyObject* object, int64_t* handle) {
  if (is_node(object)) {
    *handle = node_of(object)->handle;
    return true;
  }
  if (!PyObject_TypeCheck(object, &parameter_type)) return false;
  *handle = reinterpret_cast<ParameterObject*>(object)->handle;
  return true;
}

PyObject* new_node(PyObject* graph, ln_graph* core, long long handle);
// What a negative number from a building function means: graph._settle(number, others) raises the core's error, or
// notes where the node was built; then `handle` is the node's. False with an exception set.
bool settle(PyObject* graph, int64_t* handle, PyObject* others = nullptr);
// The node of what a building function returned.
PyObject* finish(PyObject* graph, ln_graph* core, int64_t handle, PyObject* others = nullptr);

}  // namespace lazynet::python
