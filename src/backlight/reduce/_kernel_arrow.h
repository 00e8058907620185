/* A step's rows as one Arrow array, by Arrow's C data interface: one block of memory, one import.
 *
 * The columns are those of schema.STATS, in its order; a test compares them.
 */
#ifndef BACKLIGHT_KERNEL_ARROW_H
#define BACKLIGHT_KERNEL_ARROW_H

#include <Python.h>

#include <stddef.h>

#include "_kernel_jobs.h"

/* As Arrow's specification lays it out. */
typedef struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
} ArrowArray;

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
enum { COLUMN_COUNT = sizeof COLUMNS / sizeof *COLUMNS, MAX_BUFFERS = 3, ALIGNMENT = 64 };

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

/* ---------------------------------------------------------------- the block */

/* The head of the block that all buffers lie in. */
typedef struct {
    ArrowArray root, columns[COLUMN_COUNT], items[COLUMN_COUNT]; /* items: what lists hold */
    ArrowArray *column_pointers[COLUMN_COUNT], *item_pointers[COLUMN_COUNT];
    const void *root_buffers[1], *column_buffers[COLUMN_COUNT][MAX_BUFFERS], *item_buffers[COLUMN_COUNT][2];
} Head;

/* Hands out memory behind the head. Without a block it only adds up how much there must be. */
typedef struct {
    char *block;
    size_t used;
} Room;

static void *take_room(Room *room, int64_t bytes) {
    void *at = room->block ? room->block + room->used : NULL;
    room->used += ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static void *take_copy(Room *room, const void *from, int64_t bytes) {
    void *to = take_room(room, bytes);
    if (to && bytes) memcpy(to, from, (size_t)bytes);
    return to;
}

static int64_t *put_step(const Rows *rows, int64_t step, Room *room) {
    int64_t *to = take_room(room, rows->length * 8);
    for (int64_t i = 0; to && i < rows->length; i++) to[i] = step;
    return to;
}

static void *put_fixed(const Column *column, const Rows *rows, Room *room) {
    char *to = take_room(room, rows->length * (int64_t)column->size);
    const char *from = (const char *)rows->rows + column->offset;
    for (int64_t i = 0; to && i < rows->length; i++)
        if (column->size == 8) memcpy(to + i * 8, from + (size_t)i * sizeof(Row), 8);
        else memcpy(to + i * 4, from + (size_t)i * sizeof(Row), 4);
    return to;
}

static int is_valid(const Row *row, enum Valid when) {
    return when == ALWAYS || (when == IF_FINITE ? row->has_finite : row->has_units);
}

static uint8_t *put_validity(const Column *column, const Rows *rows, Room *room, int64_t *nulls) {
    *nulls = 0;
    for (int64_t i = 0; i < rows->length; i++) *nulls += !is_valid(&rows->rows[i], column->valid);
    if (*nulls == 0) return NULL;
    uint8_t *to = take_room(room, (rows->length + 7) / 8);
    if (to) memset(to, 0, (size_t)(rows->length + 7) / 8);
    for (int64_t i = 0; to && i < rows->length; i++)
        to[i / 8] |= (uint8_t)(is_valid(&rows->rows[i], column->valid) << (i % 8));
    return to;
}

static void put_names(enum Kind kind, const Rows *rows, const Context *context, Room *room, const void **buffers) {
    int32_t *offsets = take_room(room, (rows->length + 1) * 4);
    int64_t total = 0;
    for (int64_t i = 0; i < rows->length; i++) {
        if (offsets) offsets[i] = (int32_t)total;
        total += name_of(kind, &rows->rows[i], context).length;
    }
    if (offsets) offsets[rows->length] = (int32_t)total;
    char *text = take_room(room, total);
    for (int64_t i = 0; text && i < rows->length; i++) {
        Name name = name_of(kind, &rows->rows[i], context);
        memcpy(text + offsets[i], name.text, (size_t)name.length);
    }
    buffers[1] = offsets;
    buffers[2] = text;
}

static int32_t *put_ends(const Rows *rows, const int32_t *ends, Room *room) {
    int32_t *to = take_room(room, (rows->length + 1) * 4);
    if (to) to[0] = 0;
    if (to && rows->length) memcpy(to + 1, ends, (size_t)rows->length * 4);
    return to;
}

static void put_list(Head *head, int number, const Rows *rows, Room *room) {
    enum Kind kind = COLUMNS[number].kind;
    int64_t length = kind == SHAPE ? rows->shape_length : rows->pairs.length;
    const void *values = kind == SHAPE ? (const void *)rows->shapes
                         : kind == SKETCH_KEYS ? (const void *)rows->pairs.keys : (const void *)rows->pairs.counts;
    int64_t size = kind == SHAPE ? 8 : kind == SKETCH_KEYS ? 2 : 4;
    head->column_buffers[number][1] = put_ends(rows, kind == SHAPE ? rows->shape_ends : rows->pair_ends, room);
    head->item_buffers[number][1] = take_copy(room, values, length * size);
    head->items[number].length = length;
    head->columns[number].n_children = 1;
}

static void put_column(Head *head, int number, const Rows *rows, const Context *context, Room *room) {
    const Column *column = &COLUMNS[number];
    const void **buffers = head->column_buffers[number];
    ArrowArray *array = &head->columns[number];
    array->n_buffers = 2;
    buffers[0] = put_validity(column, rows, room, &array->null_count);
    if (column->kind == STEP) buffers[1] = put_step(rows, context->step, room);
    else if (column->kind == FIXED) buffers[1] = put_fixed(column, rows, room);
    else if (column->kind >= SHAPE) put_list(head, number, rows, room);
    else {
        array->n_buffers = 3;
        put_names(column->kind, rows, context, room, buffers);
    }
}

/* ---------------------------------------------------------------- the array */

/* Children lie in the block of the whole, which goes when that is released. */
static void release_child(ArrowArray *array) { array->release = NULL; }

static void release_root(ArrowArray *array) {
    array->release = NULL;
    free(array->private_data);
}

static void link_arrays(Head *head, int64_t length, void *memory) {
    head->root = (ArrowArray){length, 0, 0, 1, COLUMN_COUNT, head->root_buffers, head->column_pointers, NULL,
                              release_root, memory};
    head->root_buffers[0] = NULL;
    for (int i = 0; i < COLUMN_COUNT; i++) {
        ArrowArray *column = &head->columns[i], *item = &head->items[i];
        column->length = length;
        column->buffers = head->column_buffers[i];
        column->children = &head->item_pointers[i];
        item->n_buffers = 2;
        item->buffers = head->item_buffers[i];
        column->release = item->release = release_child;
        head->column_pointers[i] = column;
        head->item_pointers[i] = item;
    }
}

/* Rows as an Arrow array, inside the block that its release frees; NULL without memory. */
static ArrowArray *to_arrow(const Rows *rows, const Context *context) {
    Head draft;
    Room room = {NULL, 0};
    take_room(&room, sizeof(Head));
    for (int i = 0; i < COLUMN_COUNT; i++) put_column(&draft, i, rows, context, &room);
    void *memory = malloc(room.used + ALIGNMENT);
    if (memory == NULL) return NULL;
    room = (Room){(char *)memory + (ALIGNMENT - (uintptr_t)memory % ALIGNMENT), 0};
    Head *head = take_room(&room, sizeof(Head));
    memset(head, 0, sizeof *head);
    for (int i = 0; i < COLUMN_COUNT; i++) put_column(head, i, rows, context, &room);
    link_arrays(head, rows->length, memory);
    return &head->root;
}

#endif
