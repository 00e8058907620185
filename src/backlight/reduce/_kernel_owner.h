/* Whether modules still hold what they held: asked of all of them at each step that is recorded. */
#ifndef BACKLIGHT_KERNEL_OWNER_H
#define BACKLIGHT_KERNEL_OWNER_H

#include <Python.h>

#include "_kernel_hook.h"

/* How many things lie on a shelf, in places that are not empty; -1 with an exception set. */
static Py_ssize_t filled_places(PyObject *shelf) {
    PyObject *place, *thing;
    Py_ssize_t at = 0, filled = 0;
    if (PyDict_Check(shelf)) {
        while (PyDict_Next(shelf, &at, &place, &thing)) filled += thing != Py_None;
        return filled;
    }
    PyObject *things = PyMapping_Values(shelf); /* a scripted module's */
    for (; things && at < PyList_Size(things); at++) filled += PyList_GetItem(things, at) != Py_None;
    Py_XDECREF(things);
    return things ? filled : -1;
}

/* How many lie on one of a module's shelves, which is among its own attributes, but of a scripted module. */
static Py_ssize_t places_on(PyObject *module, PyObject *own, PyObject *name) {
    PyObject *shelf = own && PyDict_Check(own) ? PyDict_GetItemWithError(own, name) : NULL;
    if (shelf) return filled_places(shelf);
    shelf = PyErr_Occurred() ? NULL : PyObject_GetAttr(module, name);
    Py_ssize_t filled = shelf ? filled_places(shelf) : -1;
    Py_XDECREF(shelf);
    return filled;
}

/* How many tensors and modules a module has itself; -1 where it is gone or cannot say. */
static Py_ssize_t size_of(PyObject *reference) {
    PyObject *shelves[] = {asked.parameters, asked.buffers, asked.modules}, *module = PyObject_CallNoArgs(reference);
    PyObject *own = module && module != Py_None ? PyObject_GenericGetDict(module, NULL) : NULL;
    Py_ssize_t size = own ? 0 : -1;
    for (int i = 0; i < 3 && size >= 0; i++) {
        Py_ssize_t filled = places_on(module, own, shelves[i]);
        size = filled < 0 ? -1 : size + filled;
    }
    Py_XDECREF(own);
    Py_XDECREF(module);
    PyErr_Clear();
    return size;
}

static PyObject *sizes_differ(PyObject *module, PyObject *sizes) {
    (void)module;
    for (Py_ssize_t i = 0; i < PyList_Size(sizes); i++) {
        PyObject *pair = PyList_GetItem(sizes, i);
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "sizes_differ takes pairs of a reference and a size");
            return NULL;
        }
        Py_ssize_t size = PyLong_AsSsize_t(PyTuple_GetItem(pair, 1));
        if (PyErr_Occurred()) return NULL;
        if (size_of(PyTuple_GetItem(pair, 0)) != size) Py_RETURN_TRUE;
    }
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_FALSE;
}

/* Whether one of a module's own modules is not known by its identity, or that cannot be told. */
static int has_stranger(PyObject *module, PyObject *found) {
    PyObject *shelf = PyObject_GetAttr(module, asked.modules), *name, *inner;
    Py_ssize_t at = 0;
    int has = shelf == NULL || !PyDict_Check(shelf);
    while (!has && PyDict_Next(shelf, &at, &name, &inner)) {
        PyObject *key = inner == Py_None ? NULL : PyLong_FromVoidPtr(inner);
        has = inner != Py_None && (key == NULL || PyDict_GetItemWithError(found, key) == NULL);
        Py_XDECREF(key);
    }
    Py_XDECREF(shelf);
    PyErr_Clear();
    return has;
}

/* Of a dictionary: by the identity of a module a tuple that begins with a weak reference to it. */
static PyObject *has_strangers(PyObject *module, PyObject *found) {
    PyObject *key, *entry;
    Py_ssize_t at = 0;
    int has = !PyDict_Check(found);
    (void)module;
    while (!has && PyDict_Next(found, &at, &key, &entry)) {
        PyObject *reference = PyTuple_Check(entry) ? PyTuple_GetItem(entry, 0) : NULL;
        PyObject *known = reference ? PyObject_CallNoArgs(reference) : NULL;
        has = known == NULL || known == Py_None || has_stranger(known, found);
        Py_XDECREF(known);
    }
    PyErr_Clear();
    return PyBool_FromLong(has);
}

static int is_held(Held *held, int *is_odd) {
    PyObject *found = find_held(held, is_odd);
    if (found == NULL || *is_odd) return 0;
    if (!has_hooks(held)) return 1;
    if (inside_of(found) != held->hooked) return 0;
    held->has_others = PyDict_Size(held->hooks) > 1;
    return 1;
}

/* False also where Python must look. */
static PyObject *are_held(PyObject *module, PyObject *list) {
    int is_odd = 0;
    (void)module;
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++)
        if (!is_held((Held *)PyList_GetItem(list, i), &is_odd)) Py_RETURN_FALSE;
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_TRUE;
}

#endif
