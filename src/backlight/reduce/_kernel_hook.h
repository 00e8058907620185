/* The hooks on parameters, put on and taken off for all of them at once: a step that is recorded now and then pays for
 * that each time. As in _kernel_sight.h, what is not plain is left to Python (capture/owned.py). */
#ifndef BACKLIGHT_KERNEL_HOOK_H
#define BACKLIGHT_KERNEL_HOOK_H

#include <Python.h>

#include "_kernel_held.h"

static int has(PyObject *object, PyObject *name, PyObject *expected) {
    PyObject *found = PyObject_GetAttr(object, name);
    int is = found == expected;
    Py_XDECREF(found);
    PyErr_Clear();
    return is;
}

/* The parameter, a new reference, where it is an ordinary one; else NULL. */
static PyObject *plain_parameter(const Held *held) {
    int is_odd = 0;
    PyObject *parameter = find_held(held, &is_odd);
    if (parameter == NULL || is_odd || (PyObject *)Py_TYPE(parameter) != torch.parameter) return NULL;
    Py_INCREF(parameter);
    return parameter;
}

/* The hooks of a parameter that has no others: the same each time, so that none are made. */
static PyObject *sole_hooks(Held *held, PyObject *key) {
    if (held->sole_hooks == NULL) {
        PyObject *hooks = PyObject_CallNoArgs(asked.ordered_dict);
        if (hooks && PyObject_SetItem(hooks, key, (PyObject *)held)) Py_CLEAR(hooks);
        held->sole_hooks = hooks;
    }
    return held->sole_hooks;
}

static int has_hooks(const Held *held) { return held->hooks && held->hooks != Py_None; }

/* torch.utils.swap_tensors gives a parameter the inside of another one, which knows nothing of its hooks. */
static unsigned long long inside_of(PyObject *parameter) {
    PyObject *found = PyObject_GetAttr(parameter, asked.cdata);
    unsigned long long inside = found ? PyLong_AsUnsignedLongLong(found) : 0;
    Py_XDECREF(found);
    PyErr_Clear();
    return inside;
}

static void keep(PyObject **place, PyObject *object) {
    PyObject *before = *place;
    Py_INCREF(object);
    *place = object;
    Py_XDECREF(before);
}

static int hook_quickly(Held *held, PyObject *key) {
    Tensor seen;
    PyObject *parameter = plain_parameter(held);
    int is_plain = parameter && has(parameter, asked.backward_hooks, Py_None) && has(parameter, asked.requires_grad, Py_True) &&
                   has(parameter, asked.is_leaf, Py_True) && read_live(parameter, &seen) == READ && sole_hooks(held, key) &&
                   !PyObject_SetAttr(parameter, asked.backward_hooks, held->sole_hooks);
    PyErr_Clear();
    if (is_plain) held->hooked = inside_of(parameter);
    Py_XDECREF(parameter);
    if (!is_plain) return SLOW;
    keep(&held->hooks, held->sole_hooks);
    keep(&held->key, key);
    held->is_first_hook = 1;
    return DONE;
}

/* The user may have put others beside it, or the parameter elsewhere: what is there then stays there, for good. */
static int unhook_quickly(Held *held) {
    if (!has_hooks(held)) return DONE;
    int is_sole = held->hooks == held->sole_hooks && PyDict_Size(held->hooks) == 1 &&
                  PyDict_GetItemWithError(held->hooks, held->key) == (PyObject *)held;
    PyObject *parameter = is_sole ? plain_parameter(held) : NULL;
    int is_plain = parameter && has(parameter, asked.backward_hooks, held->hooks) &&
                   !PyObject_SetAttr(parameter, asked.backward_hooks, Py_None);
    PyErr_Clear();
    Py_XDECREF(parameter);
    if (is_plain) keep(&held->hooks, Py_None);
    else Py_CLEAR(held->sole_hooks);
    return is_plain ? DONE : SLOW;
}

/* Those of the list that are left for Python; `key` is NULL where hooks are taken off. */
static PyObject *those_left(PyObject *list, PyObject *key) {
    PyObject *left = PyList_New(0);
    for (Py_ssize_t i = 0; left && i < PyList_Size(list); i++) {
        PyObject *held = PyList_GetItem(list, i);
        int found = key ? hook_quickly((Held *)held, key) : unhook_quickly((Held *)held);
        if (found == SLOW && PyList_Append(left, held)) Py_CLEAR(left);
    }
    return left;
}

static PyObject *hook_held(PyObject *module, PyObject *arguments) {
    PyObject *list, *key;
    (void)module;
    return PyArg_ParseTuple(arguments, "O!O", &PyList_Type, &list, &key) ? those_left(list, key) : NULL;
}

static PyObject *unhook_held(PyObject *module, PyObject *list) {
    (void)module;
    if (PyList_Check(list)) return those_left(list, NULL);
    PyErr_SetString(PyExc_TypeError, "unhook_held takes a list");
    return NULL;
}

#endif
