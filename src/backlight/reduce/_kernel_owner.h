/* Whether modules still hold what they held: asked of all of them at each step that is recorded. */
#ifndef BACKLIGHT_KERNEL_OWNER_H
#define BACKLIGHT_KERNEL_OWNER_H

#include <Python.h>

#include "_kernel_held.h"

/* How many tensors and modules a module has itself, with places that are empty; -1 where it is gone or cannot say. */
static Py_ssize_t size_of(PyObject *reference) {
    PyObject *shelves[] = {asked.parameters, asked.buffers, asked.modules}, *module = PyObject_CallNoArgs(reference);
    Py_ssize_t size = module == NULL || module == Py_None ? -1 : 0;
    for (int i = 0; i < 3 && size >= 0; i++) {
        PyObject *shelf = PyObject_GetAttr(module, shelves[i]);
        Py_ssize_t length = shelf ? PyObject_Size(shelf) : -1;
        size = length < 0 ? -1 : size + length;
        Py_XDECREF(shelf);
    }
    Py_XDECREF(module);
    PyErr_Clear();
    return size;
}

static PyObject *sizes_differ(PyObject *module, PyObject *sizes) {
    (void)module;
    for (Py_ssize_t i = 0; i < PyList_Size(sizes); i++) {
        PyObject *reference, *pair = PyList_GetItem(sizes, i);
        Py_ssize_t size;
        if (!PyArg_ParseTuple(pair, "On", &reference, &size)) return NULL;
        if (size_of(reference) != size) Py_RETURN_TRUE;
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

/* False also where Python must look. */
static PyObject *are_held(PyObject *module, PyObject *list) {
    int is_odd = 0;
    (void)module;
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++)
        if (find_held((Held *)PyList_GetItem(list, i), &is_odd) == NULL || is_odd) Py_RETURN_FALSE;
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_TRUE;
}

#endif
