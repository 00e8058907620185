/* Rows as the body of a message of an Arrow stream, and what its header says of them: all that is left
 * to do is to write them.
 *
 * The columns of a step's rows are those of schema.STATS, in its order; a test compares them.
 */
#ifndef BACKLIGHT_KERNEL_MESSAGE_H
#define BACKLIGHT_KERNEL_MESSAGE_H

#include <Python.h>

#include <stddef.h>

#include "_kernel_jobs.h"

/* The rows of a step, and the lists that belong to them. */
typedef struct {
    Row *rows;
    int64_t *shapes;
    int32_t *shape_ends, *pair_ends; /* where each row's part ends */
    int64_t length, capacity, shape_length, shape_capacity;
    Pairs pairs;
} Rows;

enum Kind { STEP, FIXED, QUANTITY, BACKWARD, DTYPE, SHAPE, SKETCH_KEYS, SKETCH_COUNTS };
enum Valid { ALWAYS, IF_FINITE, IF_UNITS };

typedef struct {
    const char *name;
    enum Kind kind;
    enum Valid valid;
    size_t offset, size; /* of a fixed column's value in a Row */
} Column;

#define FIELD(NAME, VALID) {#NAME, FIXED, VALID, offsetof(Row, NAME), sizeof(((Row *)NULL)->NAME)}
static const Column COLUMNS[] = {
    {"step", STEP, ALWAYS, 0, 0},
    FIELD(iteration, ALWAYS),
    FIELD(order, ALWAYS),
    FIELD(site, ALWAYS),
    {"quantity", QUANTITY, ALWAYS, 0, 0},
    {"backward", BACKWARD, ALWAYS, 0, 0},
    {"dtype", DTYPE, ALWAYS, 0, 0},
    {"shape", SHAPE, ALWAYS, 0, 0},
    FIELD(count, ALWAYS),
    FIELD(zeros, ALWAYS),
    FIELD(nans, ALWAYS),
    FIELD(infs, ALWAYS),
    FIELD(mean, IF_FINITE),
    FIELD(std, IF_FINITE),
    FIELD(min, IF_FINITE),
    FIELD(max, IF_FINITE),
    FIELD(abs_mean, IF_FINITE),
    FIELD(abs_max, IF_FINITE),
    FIELD(rms, IF_FINITE),
    FIELD(units, IF_UNITS),
    FIELD(dead_units, IF_UNITS),
    FIELD(constant_units, IF_UNITS),
    FIELD(batch_std, IF_UNITS),
    {"sketch_keys", SKETCH_KEYS, ALWAYS, 0, 0},
    {"sketch_counts", SKETCH_COUNTS, ALWAYS, 0, 0},
};
enum { COLUMN_COUNT = sizeof COLUMNS / sizeof *COLUMNS, PADDING = 8 };

/* ---------------------------------------------------------------- the body */

enum { MAX_COLUMNS = 48, MAX_BUFFERS = 4 * MAX_COLUMNS, MAX_NODES = 2 * MAX_COLUMNS };

/* Hands out memory for one buffer after the other. Without memory it only adds up how much there must be. */
typedef struct {
    char *bytes;
    int64_t used;
    int64_t nodes[MAX_NODES][2];     /* of each column, and of what lists hold: its length, its nulls */
    int64_t buffers[MAX_BUFFERS][2]; /* each one's offset and length */
    int node_count, buffer_count;
} Packing;

static void *take_buffer(Packing *body, int64_t length) {
    int64_t *said = body->buffers[body->buffer_count++], start = body->used;
    said[0] = start;
    said[1] = length;
    body->used += (length + PADDING - 1) / PADDING * PADDING;
    if (body->bytes == NULL) return NULL;
    if (body->used > start) memset(body->bytes + body->used - PADDING, 0, PADDING); /* nothing of ours leaks */
    return body->bytes + start;
}

static void add_node(Packing *body, int64_t length, int64_t nulls) {
    int64_t *said = body->nodes[body->node_count++];
    said[0] = length;
    said[1] = nulls;
}

/* Calls `fill` twice: to see how much memory there must be, and to fill it. Returns the tuple that native.Packed
 * is made of. */
static PyObject *pack(int64_t rows, int (*fill)(Packing *, const void *), const void *from) {
    Packing body = {.bytes = NULL};
    if (fill(&body, from)) return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)body.used);
    if (bytes == NULL) return NULL;
    body.bytes = PyBytes_AsString(bytes);
    body.used = body.node_count = body.buffer_count = 0;
    if (fill(&body, from)) {
        Py_DECREF(bytes);
        return NULL;
    }
    return Py_BuildValue("Ly#y#N", (long long)rows, (const char *)body.nodes, (Py_ssize_t)body.node_count * 16,
                         (const char *)body.buffers, (Py_ssize_t)body.buffer_count * 16, bytes);
}

/* ---------------------------------------------------------------- names */

typedef struct {
    const char *text;
    int64_t length;
} Name;

typedef struct {
    Name *names;
    int64_t length;
} Names;

/* The texts belong to the Python strings. */
static int read_names(PyObject *tuple, Names *to) {
    Py_ssize_t length = PyTuple_Size(tuple);
    to->names = length < 0 ? NULL : malloc(((size_t)length + 1) * sizeof *to->names);
    if (to->names == NULL) return -1;
    for (to->length = 0; to->length < length; to->length++) {
        Py_ssize_t size;
        const char *text = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(tuple, (Py_ssize_t)to->length), &size);
        if (text == NULL) return -1;
        to->names[to->length] = (Name){text, size};
    }
    return 0;
}

/* What rows are written with beside their own numbers: a row's quantity counts through the names of
 * quantities once for each of the backward passes. */
typedef struct {
    int64_t step;
    Names quantities, backwards;
} Context;

static Name name_of(enum Kind kind, const Row *row, const Context *context) {
    int64_t quantities = context->quantities.length;
    if (kind == QUANTITY) return context->quantities.names[row->quantity % quantities];
    if (kind == BACKWARD) return context->backwards.names[row->quantity / quantities];
    return (Name){DTYPE_NAMES[row->dtype], (int64_t)strlen(DTYPE_NAMES[row->dtype])};
}

static int check_quantities(const Rows *rows, const Context *context) {
    int64_t limit = context->quantities.length * context->backwards.length;
    for (int64_t i = 0; i < rows->length; i++)
        if (rows->rows[i].quantity < 0 || rows->rows[i].quantity >= limit) {
            PyErr_SetString(PyExc_IndexError, "a row's quantity has no name");
            return -1;
        }
    return 0;
}

/* ---------------------------------------------------------------- a step's rows */

typedef struct {
    const Rows *rows;
    const Context *context;
} StepRows;

static void put_step(const Rows *rows, int64_t step, Packing *body) {
    int64_t *to = take_buffer(body, rows->length * 8);
    for (int64_t i = 0; to && i < rows->length; i++) to[i] = step;
}

static void put_fixed(const Column *column, const Rows *rows, Packing *body) {
    char *to = take_buffer(body, rows->length * (int64_t)column->size);
    const char *from = (const char *)rows->rows + column->offset;
    for (int64_t i = 0; to && i < rows->length; i++)
        if (column->size == 8) memcpy(to + i * 8, from + (size_t)i * sizeof(Row), 8);
        else memcpy(to + i * 4, from + (size_t)i * sizeof(Row), 4);
}

static int is_valid(const Row *row, enum Valid when) {
    return when == ALWAYS || (when == IF_FINITE ? row->has_finite : row->has_units);
}

static void put_validity(const Column *column, const Rows *rows, Packing *body) {
    int64_t nulls = 0;
    if (column->valid != ALWAYS)
        for (int64_t i = 0; i < rows->length; i++) nulls += !is_valid(&rows->rows[i], column->valid);
    add_node(body, rows->length, nulls);
    uint8_t *to = take_buffer(body, nulls ? (rows->length + 7) / 8 : 0);
    if (to == NULL || nulls == 0) return;
    memset(to, 0, (size_t)(rows->length + 7) / 8);
    for (int64_t i = 0; i < rows->length; i++)
        to[i / 8] |= (uint8_t)(is_valid(&rows->rows[i], column->valid) << (i % 8));
}

static void put_names(enum Kind kind, const Rows *rows, const Context *context, Packing *body) {
    int32_t *offsets = take_buffer(body, (rows->length + 1) * 4);
    int64_t total = 0;
    for (int64_t i = 0; i < rows->length; i++) {
        if (offsets) offsets[i] = (int32_t)total;
        total += name_of(kind, &rows->rows[i], context).length;
    }
    if (offsets) offsets[rows->length] = (int32_t)total;
    char *text = take_buffer(body, total);
    for (int64_t i = 0; text && i < rows->length; i++) {
        Name name = name_of(kind, &rows->rows[i], context);
        memcpy(text + offsets[i], name.text, (size_t)name.length);
    }
}

static void put_list(enum Kind kind, const Rows *rows, Packing *body) {
    const int32_t *ends = kind == SHAPE ? rows->shape_ends : rows->pair_ends;
    int64_t length = kind == SHAPE ? rows->shape_length : rows->pairs.length;
    const void *values = kind == SHAPE ? (const void *)rows->shapes
                         : kind == SKETCH_KEYS ? (const void *)rows->pairs.keys : (const void *)rows->pairs.counts;
    int64_t bytes = length * (kind == SHAPE ? 8 : kind == SKETCH_KEYS ? 2 : 4);
    int32_t *offsets = take_buffer(body, (rows->length + 1) * 4);
    if (offsets) offsets[0] = 0;
    if (offsets && rows->length) memcpy(offsets + 1, ends, (size_t)rows->length * 4);
    add_node(body, length, 0);
    take_buffer(body, 0);
    void *to = take_buffer(body, bytes);
    if (to && bytes) memcpy(to, values, (size_t)bytes);
}

static int fill_step(Packing *body, const void *from) {
    const Rows *rows = ((const StepRows *)from)->rows;
    const Context *context = ((const StepRows *)from)->context;
    for (const Column *column = COLUMNS; column < COLUMNS + COLUMN_COUNT; column++) {
        put_validity(column, rows, body);
        if (column->kind == STEP) put_step(rows, context->step, body);
        else if (column->kind == FIXED) put_fixed(column, rows, body);
        else if (column->kind >= SHAPE) put_list(column->kind, rows, body);
        else put_names(column->kind, rows, context, body);
    }
    return 0;
}

static int is_all_finite(const Rows *rows) {
    int64_t found = 0;
    for (int64_t i = 0; i < rows->length; i++) found |= rows->rows[i].nans | rows->rows[i].infs;
    return found == 0;
}

/* ---------------------------------------------------------------- rows that are dictionaries */

typedef struct {
    PyObject **values; /* column by column, borrowed; NULL where there is none */
    const char *kinds; /* of each column: q int64, i int32, d double, b bool, s text */
    Py_ssize_t length, columns;
} GivenRows;

static PyObject *value_at(const GivenRows *given, Py_ssize_t row, Py_ssize_t column) {
    return given->values[column * given->length + row];
}

/* Looks up each value once: each is asked for several times. -1 where a row is no plain dictionary. */
static int find_values(const GivenRows *given, PyObject *rows, PyObject *names) {
    for (Py_ssize_t row = 0; row < given->length; row++) {
        PyObject *dict = PyList_GetItem(rows, row);
        if (!PyDict_CheckExact(dict)) return -1;
        for (Py_ssize_t column = 0; column < given->columns; column++) {
            PyObject *value = PyDict_GetItemWithError(dict, PyTuple_GetItem(names, column));
            if (value == NULL && PyErr_Occurred()) return -1;
            given->values[column * given->length + row] = value == Py_None ? NULL : value;
        }
    }
    return 0;
}

static int is_of_kind(PyObject *value, char kind) {
    switch (kind) {
    case 'q': case 'i': return PyLong_CheckExact(value);
    case 'd': return PyFloat_Check(value) || PyLong_CheckExact(value);
    case 'b': return PyBool_Check(value);
    default: return PyUnicode_CheckExact(value);
    }
}

static int put_given_validity(Packing *body, const GivenRows *given, Py_ssize_t column) {
    Py_ssize_t length = given->length;
    int64_t nulls = 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *value = value_at(given, i, column);
        if (value && !is_of_kind(value, given->kinds[column])) return -1;
        nulls += value == NULL;
    }
    add_node(body, length, nulls);
    uint8_t *to = take_buffer(body, nulls ? (length + 7) / 8 : 0);
    if (to == NULL || nulls == 0) return 0;
    memset(to, 0, (size_t)(length + 7) / 8);
    for (Py_ssize_t i = 0; i < length; i++) to[i / 8] |= (uint8_t)((value_at(given, i, column) != NULL) << (i % 8));
    return 0;
}

static int put_given_texts(Packing *body, const GivenRows *given, Py_ssize_t column) {
    Py_ssize_t length = given->length, size;
    int32_t *offsets = take_buffer(body, ((int64_t)length + 1) * 4);
    int64_t total = 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *value = value_at(given, i, column);
        if (offsets) offsets[i] = (int32_t)total;
        if (value == NULL) continue;
        if (PyUnicode_AsUTF8AndSize(value, &size) == NULL) return -1;
        total += size;
    }
    if (total > INT32_MAX) return -1;
    if (offsets) offsets[length] = (int32_t)total;
    char *text = take_buffer(body, total);
    for (Py_ssize_t i = 0; text && i < length; i++) {
        PyObject *value = value_at(given, i, column);
        const char *utf8 = value ? PyUnicode_AsUTF8AndSize(value, &size) : NULL;
        if (utf8) memcpy(text + offsets[i], utf8, (size_t)size);
    }
    return 0;
}

static int put_given_numbers(Packing *body, const GivenRows *given, Py_ssize_t column) {
    Py_ssize_t length = given->length;
    char kind = given->kinds[column];
    int64_t bytes = kind == 'b' ? (length + 7) / 8 : kind == 'i' ? length * 4 : length * 8;
    char *to = take_buffer(body, bytes);
    if (to == NULL) return 0;
    memset(to, 0, (size_t)bytes);
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *value = value_at(given, i, column);
        if (value == NULL) continue;
        if (kind == 'b') to[i / 8] |= (char)((value == Py_True) << (i % 8));
        else if (kind == 'd') ((double *)(void *)to)[i] = PyFloat_AsDouble(value);
        else if (kind == 'q') ((int64_t *)(void *)to)[i] = PyLong_AsLongLong(value);
        else {
            long long number = PyLong_AsLongLong(value);
            if (number != (int32_t)number) return -1;
            ((int32_t *)(void *)to)[i] = (int32_t)number;
        }
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int fill_given(Packing *body, const void *from) {
    const GivenRows *given = from;
    for (Py_ssize_t column = 0; column < given->columns; column++) {
        int is_text = given->kinds[column] == 's';
        if (put_given_validity(body, given, column)) return -1;
        if ((is_text ? put_given_texts : put_given_numbers)(body, given, column)) return -1;
    }
    return 0;
}

/* None where a value is not of its column's kind: Arrow says what is wrong with it. */
static PyObject *pack_rows(PyObject *module, PyObject *arguments) {
    (void)module;
    GivenRows given;
    PyObject *rows, *names, *packed = NULL;
    if (!PyArg_ParseTuple(arguments, "OOy#", &rows, &names, &given.kinds, &given.columns)) return NULL;
    if (!PyList_Check(rows) || !PyTuple_Check(names) || PyTuple_Size(names) != given.columns || given.columns > MAX_COLUMNS) {
        PyErr_SetString(PyExc_TypeError, "pack_rows takes a list of rows, a tuple of names, and a kind for each");
        return NULL;
    }
    given.length = PyList_Size(rows);
    given.values = malloc(((size_t)given.length * (size_t)given.columns + 1) * sizeof *given.values);
    if (given.values == NULL) return PyErr_NoMemory();
    if (!find_values(&given, rows, names)) packed = pack(given.length, fill_given, &given);
    free(given.values);
    if (packed) return packed;
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

#endif
