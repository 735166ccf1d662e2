// Identities: which objects some lists, dicts and sets hold, to find out at every call of a cell that was traced with
// them whether they still hold the same.
#include <cstddef>
#include <utility>
#include <vector>

#include "handle.h"

namespace lazynet::python {
namespace {

struct Held {
  PyObject* container;
  std::vector<PyObject*> items;  // kept, so that no other object takes the place of one in memory
  void release() {
    for (PyObject* item : items) Py_DECREF(item);
    Py_DECREF(container);
  }
};
struct Identities {
  PyObject_HEAD std::vector<Held>* held;
};
PyTypeObject* identities_type = nullptr;

// visit(item) for keys and values, until one says false. False then, and with an exception set.
template <class Visit>
bool for_each(PyObject* container, const Visit& visit) {
  if (PyList_Check(container)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(container); ++i)
      if (!visit(PyList_GET_ITEM(container, i))) return false;
    return true;
  }
  if (PyDict_CheckExact(container)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(container, &at, &key, &value);)
      if (!visit(key) || !visit(value)) return false;
    return true;
  }
  PyObject* items = PySequence_List(container);
  bool good = items && for_each(items, visit);
  Py_XDECREF(items);
  if (good && PyDict_Check(container)) {  // of another order than its own, perhaps
    PyObject* values = PyMapping_Values(container);
    good = values && for_each(values, visit);
    Py_XDECREF(values);
  }
  return good;
}

bool same(const Held& held) {
  std::size_t at = 0;
  const bool all =
      for_each(held.container, [&](PyObject* item) { return at < held.items.size() && held.items[at++] == item; });
  return all && at == held.items.size();
}

void clear_held(Identities* self) {
  std::vector<Held> gone;
  gone.swap(*self->held);  // what is released may run any code
  for (Held& held : gone) held.release();
}

PyObject* take(PyObject* object, PyObject* containers) {
  auto* self = reinterpret_cast<Identities*>(object);
  clear_held(self);
  if (!PyList_Check(containers)) return PyErr_Format(PyExc_TypeError, "take: a list is required");
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(containers); ++i) {
    Held held{PyList_GET_ITEM(containers, i), {}};
    Py_INCREF(held.container);
    const bool good = for_each(held.container, [&](PyObject* item) {
      Py_INCREF(item);
      held.items.push_back(item);
      return true;
    });
    self->held->push_back(std::move(held));
    if (!good) return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* identities_call(PyObject* self, PyObject*, PyObject*) { return PyBool_FromLong(identities_hold(self)); }

PyObject* identities_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* made = type->tp_alloc(type, 0);
  if (made) reinterpret_cast<Identities*>(made)->held = new std::vector<Held>;
  return made;
}

int identities_traverse(PyObject* object, visitproc visit, void* arg) {
  if (const auto* all = reinterpret_cast<Identities*>(object)->held)
    for (const Held& held : *all) {
      Py_VISIT(held.container);
      for (PyObject* item : held.items) Py_VISIT(item);
    }
  Py_VISIT(Py_TYPE(object));
  return 0;
}

int identities_clear(PyObject* object) {
  clear_held(reinterpret_cast<Identities*>(object));
  return 0;
}

void identities_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  identities_clear(object);
  delete reinterpret_cast<Identities*>(object)->held;
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"take", take, METH_O, "take(containers): remembers what each of a list of containers holds."},
    {nullptr, nullptr, 0, nullptr},
};
template <class Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}
PyType_Slot slots[] = {
    {Py_tp_new, slot(identities_new)},
    {Py_tp_dealloc, slot(identities_dealloc)},
    {Py_tp_traverse, slot(identities_traverse)},
    {Py_tp_clear, slot(identities_clear)},
    {Py_tp_call, slot(identities_call)},
    {Py_tp_methods, methods},
    {0, nullptr},
};
PyType_Spec spec = {"lazynet._nodes.Identities", sizeof(Identities), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

bool is_identities(PyObject* object) { return Py_TYPE(object) == identities_type; }

bool identities_hold(PyObject* object) {
  const std::vector<Held>& all = *reinterpret_cast<Identities*>(object)->held;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!same(all[i])) {
      PyErr_Clear();  // whoever traces again meets it
      return false;
    }
  return true;
}

PyTypeObject* prepare_identities_type() {
  return identities_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

}  // namespace lazynet::python
