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
