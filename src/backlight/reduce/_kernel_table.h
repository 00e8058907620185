/* Rows of statistics, filled tensor by tensor: what Python sees as a Table. */
#ifndef BACKLIGHT_KERNEL_TABLE_H
#define BACKLIGHT_KERNEL_TABLE_H

#include <Python.h>
#include <structmember.h>

#include "_kernel_jobs.h"
#include "_kernel_message.h"
#include "_kernel_torch.h"

typedef struct {
    PyObject_HEAD
    Rows rows;
    int order; /* of the next row among all of a step: some are not of this table */
} Table;

static int reserve_row(Rows *r, int dims) {
    if (r->length == r->capacity) {
        int64_t capacity = r->capacity ? r->capacity * 2 : 64;
        Row *rows = realloc(r->rows, (size_t)capacity * sizeof *rows);
        if (rows) r->rows = rows;
        int32_t *shape_ends = realloc(r->shape_ends, (size_t)capacity * 4);
        if (shape_ends) r->shape_ends = shape_ends;
        int32_t *pair_ends = realloc(r->pair_ends, (size_t)capacity * 4);
        if (pair_ends) r->pair_ends = pair_ends;
        if (!rows || !shape_ends || !pair_ends) return -1;
        r->capacity = capacity;
    }
    if (r->shape_length + dims > r->shape_capacity) {
        int64_t capacity = (r->shape_length + dims) * 2 + 64;
        int64_t *shapes = realloc(r->shapes, (size_t)capacity * 8);
        if (!shapes) return -1;
        r->shapes = shapes;
        r->shape_capacity = capacity;
    }
    return 0;
}

/* Adds a row whose pairs are in the table already; there is room for it. */
static void add_row(Rows *r, const Row *row, const int64_t *shape, int dims) {
    if (dims) memcpy(r->shapes + r->shape_length, shape, (size_t)dims * 8);
    r->shape_length += dims;
    r->shape_ends[r->length] = (int32_t)r->shape_length;
    r->pair_ends[r->length] = (int32_t)r->pairs.length;
    r->rows[r->length++] = *row;
}

static int add_jobs(Rows *r, Job *jobs, int64_t length) {
    for (Job *job = jobs; job < jobs + length; job++) {
        int64_t before = r->pairs.length;
        if (reserve_row(r, job->tensor.dims) || finish_job(job, &r->pairs)) {
            r->pairs.length = before;
            return -1;
        }
        add_row(r, &job->row, job->tensor.shape, job->tensor.dims);
    }
    return 0;
}

/* ---------------------------------------------------------------- from arguments to rows */

/* Threads are woken, and the interpreter is let go, only for what takes longer than that does. */
static int run_crew(Crew *crew, Job *jobs, int64_t length) {
    int64_t elements = elements_in(jobs, length);
    int threads = elements > grain_of(length) ? torch_threads() : 1, failed = -1;
    if (!prepare_tasks(crew, jobs, length) && threads > 0) {
        prepare_workers(crew, threads);
        if (elements > GRAIN) {
            Py_BEGIN_ALLOW_THREADS
            failed = work(crew);
            Py_END_ALLOW_THREADS
        } else {
            failed = work(crew);
        }
    }
    if (failed && !PyErr_Occurred()) PyErr_NoMemory();
    return failed ? -1 : 0;
}

static int run_jobs(Rows *rows, Job *jobs, int64_t length) {
    Crew crew;
    int failed = run_crew(&crew, jobs, length);
    if (!failed && add_jobs(rows, jobs, length)) {
        PyErr_NoMemory();
        failed = -1;
    }
    for (Job *job = jobs; job < jobs + length; job++) job->digest = failed || job->digesting == NO_DIGEST ? 0 : digest_of(job);
    dismiss(&crew);
    return failed;
}

static void start_row(Row *row, int dtype, int32_t order, int32_t iteration) {
    memset(row, 0, sizeof *row);
    row->dtype = (int8_t)dtype;
    row->order = order;
    row->iteration = iteration;
}

static void start_job(Job *job, enum Digesting digesting) {
    job->unit_dim = -1;
    job->copy = NULL;
    job->units.flags = NULL;
    job->digesting = digesting;
}

/* Reads what is said of a tensor: numbers to the row, its place in memory to the job. */
static int read_job(Job *job, PyObject *tensor, PyObject *site, PyObject *quantity, int32_t order, int32_t iteration) {
    int found = read_tensor(tensor, &job->tensor);
    if (found != READ) return found;
    start_row(&job->row, job->tensor.dtype, order, iteration);
    job->row.site = (int32_t)PyLong_AsLong(site);
    job->row.quantity = (int16_t)PyLong_AsLong(quantity);
    start_job(job, NO_DIGEST);
    return PyErr_Occurred() ? HAS_ERROR : READ;
}

static int is_alike(const Tensor *a, const Tensor *b) {
    return a->dtype == b->dtype && a->dims == b->dims && !memcmp(a->shape, b->shape, (size_t)a->dims * 8) &&
           !memcmp(a->stride, b->stride, (size_t)a->dims * 8);
}

/* Takes another tensor of the same layout away from the job's. */
static int take_away(Job *job, const Tensor *other) {
    if (job->tensor.dtype > BFLOAT16 || !is_alike(&job->tensor, other)) return NOT_READABLE;
    job->tensor.minus = other->data;
    return READ;
}

/* The elements are copied to another tensor of the same layout, which has no gaps. */
static int copy_to(Job *job, const Tensor *other) {
    Tensor dense = job->tensor;
    order_dims(&dense);
    join_dims(&dense);
    if (!dense.is_dense || !is_alike(&job->tensor, other)) return NOT_READABLE;
    job->copy = (char *)other->data;
    return READ;
}

/* Both, of a tensor that is given. */
static int read_other(Job *job, PyObject *tensor, int (*use)(Job *, const Tensor *)) {
    Tensor other;
    int found = read_tensor(tensor, &other);
    return found == READ ? use(job, &other) : found;
}

static int check_given(Py_ssize_t given, Py_ssize_t wanted, const char *message) {
    if (given != wanted) PyErr_SetString(PyExc_TypeError, message);
    return given != wanted;
}

static void bring_to_front(int64_t *numbers, int place) {
    int64_t number = numbers[place];
    memmove(numbers + 1, numbers, (size_t)place * sizeof *numbers);
    numbers[0] = number;
}

static void bring_back(int64_t *numbers, int place) {
    int64_t number = numbers[0];
    memmove(numbers, numbers + 1, (size_t)place * sizeof *numbers);
    numbers[place] = number;
}

/* Samples are counted by the first dimension: another one takes its place while the tensor is read. */
static int run_batch_first(Rows *rows, Job *job, int batch_dim) {
    int is_other = batch_dim > 0 && batch_dim < job->tensor.dims;
    if (is_other) {
        bring_to_front(job->tensor.shape, batch_dim);
        bring_to_front(job->tensor.stride, batch_dim);
    }
    int failed = run_jobs(rows, job, 1);
    if (is_other && !failed) bring_back(rows->shapes + rows->shape_length - job->tensor.dims, batch_dim);
    return failed;
}

/* The answer is the row, or -1 if the tensor cannot be read here. The dimension of units is counted after that of
 * samples has come to the front. */
static PyObject *table_observe(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    int batch_dim = given == 7 ? (int)PyLong_AsLong(arguments[6]) : 0;
    if (check_given(given == 7 ? 6 : given, 6, "observe takes tensor, site, quantity, order, iteration, unit_dim, and perhaps batch_dim")) return NULL;
    Job job;
    int32_t order = (int32_t)PyLong_AsLong(arguments[3]), iteration = (int32_t)PyLong_AsLong(arguments[4]);
    int unit_dim = (int)PyLong_AsLong(arguments[5]);
    if (PyErr_Occurred()) return NULL;
    int found = read_job(&job, arguments[0], arguments[1], arguments[2], order, iteration);
    job.unit_dim = unit_dim;
    if (found == READ && run_batch_first(&((Table *)self)->rows, &job, batch_dim)) found = HAS_ERROR;
    return found == HAS_ERROR ? NULL : PyLong_FromLongLong(found == READ ? ((Table *)self)->rows.length - 1 : -1);
}

/* The same, for a tensor without units, with its fingerprint. */
static PyObject *table_observe_marked(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (check_given(given, 5, "observe_marked takes tensor, site, quantity, order, iteration")) return NULL;
    Job job = {.digest = 0};
    int32_t order = (int32_t)PyLong_AsLong(arguments[3]), iteration = (int32_t)PyLong_AsLong(arguments[4]);
    if (PyErr_Occurred()) return NULL;
    int found = read_job(&job, arguments[0], arguments[1], arguments[2], order, iteration);
    job.digesting = WITH_DIGEST;
    if (found == READ && run_jobs(&((Table *)self)->rows, &job, 1)) found = HAS_ERROR;
    if (found == HAS_ERROR) return NULL;
    long long row = found == READ ? (long long)((Table *)self)->rows.length - 1 : -1;
    return Py_BuildValue("LK", row, (unsigned long long)job.digest);
}

/* One of the items (tensor, site, quantity), (new, site, quantity, old), (tensor, site, quantity, None, copy). */
static int read_item(Job *job, PyObject *item, int32_t order, int32_t iteration) {
    Py_ssize_t size = PyTuple_Check(item) ? PyTuple_Size(item) : -1;
    if (size < 3 || size > 5) {
        PyErr_SetString(PyExc_TypeError, "an item must be a tuple: tensor, site, quantity, and perhaps old, copy");
        return HAS_ERROR;
    }
    int found = read_job(job, PyTuple_GetItem(item, 0), PyTuple_GetItem(item, 1), PyTuple_GetItem(item, 2), order,
                         iteration);
    PyObject *old = size > 3 ? PyTuple_GetItem(item, 3) : Py_None;
    if (found == READ && old != Py_None) found = read_other(job, old, take_away);
    return found == READ && size > 4 ? read_other(job, PyTuple_GetItem(item, 4), copy_to) : found;
}

static int note_left(PyObject *left, Py_ssize_t place) {
    PyObject *number = PyLong_FromSsize_t(place);
    int bad = number == NULL || PyList_Append(left, number);
    Py_XDECREF(number);
    return bad;
}

/* Observes what can be read here; the places of other items go to the list `left`. */
static int observe_items(Rows *rows, PyObject *items, int32_t order, int32_t iteration, PyObject *left) {
    Py_ssize_t length = PyTuple_Size(items), jobs_length = 0;
    Job *jobs = malloc(((size_t)length + 1) * sizeof *jobs);
    if (jobs == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int bad = 0;
    for (Py_ssize_t i = 0; i < length && !bad; i++) {
        int found = read_item(&jobs[jobs_length], PyTuple_GetItem(items, i), order + (int32_t)i, iteration);
        if (found == READ) jobs_length++;
        else bad = found == HAS_ERROR || note_left(left, i);
    }
    if (!bad && jobs_length) bad = run_jobs(rows, jobs, jobs_length);
    free(jobs);
    return bad;
}

static PyObject *table_observe_many(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (check_given(given, 3, "observe_many takes items, order, iteration")) return NULL;
    int32_t order = (int32_t)PyLong_AsLong(arguments[1]), iteration = (int32_t)PyLong_AsLong(arguments[2]);
    if (PyErr_Occurred()) return NULL;
    PyObject *items = PySequence_Tuple(arguments[0]), *left = PyList_New(0); /* a tuple keeps its tensors alive */
    if (items && left && observe_items(&((Table *)self)->rows, items, order, iteration, left)) Py_CLEAR(left);
    if (items == NULL) Py_CLEAR(left);
    Py_XDECREF(items);
    return left;
}

/* A row once more, for another site that the very same tensor is seen at. */
static int repeat_row(Rows *rows, int64_t at, int32_t order, int32_t iteration, int32_t site) {
    Row row = rows->rows[at];
    row.order = order;
    row.iteration = iteration;
    row.site = site;
    int64_t shape_start = at ? rows->shape_ends[at - 1] : 0, start = at ? rows->pair_ends[at - 1] : 0;
    int64_t end = rows->pair_ends[at];
    int dims = (int)(rows->shape_ends[at] - shape_start);
    if (reserve_row(rows, dims) || reserve_pairs(&rows->pairs, end - start)) {
        PyErr_NoMemory();
        return -1;
    }
    append_pairs(&rows->pairs, &rows->pairs, start, end);
    add_row(rows, &row, rows->shapes + shape_start, dims);
    return 0;
}

static PyObject *table_repeat(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (check_given(given, 4, "repeat takes row, order, iteration, site")) return NULL;
    Rows *rows = &((Table *)self)->rows;
    int64_t at = PyLong_AsLongLong(arguments[0]);
    if (at < 0 || at >= rows->length) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "there is no such row to repeat");
        return NULL;
    }
    int32_t order = (int32_t)PyLong_AsLong(arguments[1]), iteration = (int32_t)PyLong_AsLong(arguments[2]);
    int32_t site = (int32_t)PyLong_AsLong(arguments[3]);
    if (PyErr_Occurred() || repeat_row(rows, at, order, iteration, site)) return NULL;
    Py_RETURN_NONE;
}

/* The rows as native.Packed. */
static PyObject *table_pack(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (check_given(given, 3, "pack takes step, quantities, backwards")) return NULL;
    const Rows *rows = &((Table *)self)->rows;
    Context context = {.step = PyLong_AsLongLong(arguments[0])};
    StepRows from = {rows, &context};
    PyObject *packed = NULL;
    if (!PyErr_Occurred() && !read_names(arguments[1], &context.quantities) &&
        !read_names(arguments[2], &context.backwards) && !check_quantities(rows, &context))
        packed = pack(rows->length, fill_step, &from);
    free(context.quantities.names);
    free(context.backwards.names);
    return packed;
}

static PyObject *table_is_finite(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(is_all_finite(&((Table *)self)->rows));
}

static void clear_table(Table *table) {
    Rows *rows = &table->rows;
    rows->length = rows->shape_length = rows->pairs.length = 0;
    table->order = 0;
}

static PyObject *table_clear(PyObject *self, PyObject *unused) {
    (void)unused;
    clear_table((Table *)self);
    Py_RETURN_NONE;
}

static Py_ssize_t table_length(PyObject *self) { return (Py_ssize_t)((Table *)self)->rows.length; }

static void table_dealloc(PyObject *self) {
    Rows *rows = &((Table *)self)->rows;
    PyTypeObject *type = Py_TYPE(self);
    free(rows->rows);
    free(rows->shapes);
    free(rows->shape_ends);
    free(rows->pair_ends);
    free_pairs(&rows->pairs);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

#define METHOD(NAME) (PyCFunction)(void (*)(void))NAME
static PyMethodDef table_methods[] = {
    {"observe", METHOD(table_observe), METH_FASTCALL, "Add one tensor as a row; return the row, or -1 if it cannot be read."},
    {"observe_marked", METHOD(table_observe_marked), METH_FASTCALL, "The same, and the tensor's fingerprint, or 0."},
    {"observe_many", METHOD(table_observe_many), METH_FASTCALL, "Add rows; return the places of items that cannot be read."},
    {"repeat", METHOD(table_repeat), METH_FASTCALL, "Add a row again, for another site."},
    {"pack", METHOD(table_pack), METH_FASTCALL, "The rows: how many, and an Arrow message's nodes, buffers and body."},
    {"is_finite", table_is_finite, METH_NOARGS, "Whether no element of any row was a NaN or an infinity."},
    {"clear", table_clear, METH_NOARGS, "Forget all rows."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef table_members[] = {
    {"order", T_INT, offsetof(Table, order), 0, "The order of the next row."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot table_slots[] = {
    {Py_tp_doc, "Rows of statistics, filled tensor by tensor."},
    {Py_tp_methods, table_methods},
    {Py_tp_members, table_members},
    {Py_tp_dealloc, table_dealloc},
    {Py_sq_length, table_length},
    {0, NULL},
};
static PyType_Spec table_spec = {"backlight.reduce._kernel.Table", sizeof(Table), 0, Py_TPFLAGS_DEFAULT, table_slots};

#endif
