/* What modules are called with and return, and the gradients of that, seen without Python where all is plain.
 *
 * The types here are the state of capture/modules.py and capture/observer.py, which do the same in Python: a
 * call of one tensor that returns one tensor, of a module that is known, in a step of which only statistics
 * are kept, is dealt with here; whatever else comes is left to them, before anything was done. After a step's
 * matrix products the caches are empty, so what a hook costs is how much memory it looks at.
 */
#ifndef BACKLIGHT_KERNEL_SIGHT_H
#define BACKLIGHT_KERNEL_SIGHT_H

#include <Python.h>
#include <structmember.h>
#include <time.h>

#include "_kernel_table.h"

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* What of torch and Python is asked for at each sight; filled by `connect_sight`. */
static struct {
    PyObject *version, *requires_grad, *is_leaf, *grad_fn, *cdata, *backward_hooks, *register_hook_dict, *ours; /* names */
    PyObject *ordered_dict, *graph_task, *tracing_state, *threads_apart;
    PyObject *begin_pass, *slow_hook, *slow_grad, *slow_before, *slow_after, *slow_parameter_grad, *fail; /* names of methods */
    PyObject *grad, *step, *state, *param_groups, *generation, *depth, *passes, *last_step, *is_fresh;
    PyObject *parameters, *buffers, *modules; /* names of a module's shelves */
} asked;

enum { DONE = 0, SLOW = 1, FAILED = -1 };

static PyObject *nothing(void) { Py_RETURN_NONE; }

static PyObject *refuse(const char *message) {
    PyErr_SetString(PyExc_TypeError, message);
    return NULL;
}

/* ---------------------------------------------------------------- a heap type's objects */

static void release_object(PyObject *self, inquiry clear) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* ---------------------------------------------------------------- what a step sees */

/* The last gradient that was read, without keeping it alive: a sum gives the same one to all that it adds up. */
typedef struct {
    PyObject *reference; /* or NULL */
    uint64_t digest;
    int64_t version, row, step;
    int code; /* of its quantity */
} LastGrad;

typedef struct {
    PyObject_HEAD
    PyObject *table;        /* a Table, once there is one */
    PyObject *seen;         /* dict: the identity of a tensor, and its Seen */
    PyObject *hooked;       /* set: the sights (site, iteration) whose gradient is waited for */
    LastGrad last_grad;
    double recording_secs;
    int64_t step;
    int iteration, update_iteration, grad_code;
    char is_open, has_backward;
    char is_native; /* the kernel's statistics are all that is made of a tensor's elements */
    char is_plain;  /* and none of these are kept */
    char is_quick;  /* and the graph is not followed */
} Sights;
static PyTypeObject *sights_type;

typedef struct {
    int32_t site, iteration;
} Where;

enum { FEW_SIGHTS = 4 };

/* A tensor as it was when it was read, without keeping it alive. Called with its gradient, it sees that. */
typedef struct {
    PyObject_HEAD
    PyObject *reference, *observer;
    uint64_t digest;
    int64_t version, row, step;
    int units, has_mark;
    int length, capacity, first, told; /* of the sights, and which of them had a gradient last */
    Where *where, few[FEW_SIGHTS];
} Seen;
static PyTypeObject *seen_type;
static const int64_t NO_ROW = INT64_MIN;

static int seen_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Seen *)self)->observer);
    return 0;
}

static int seen_clear(PyObject *self) {
    Py_CLEAR(((Seen *)self)->observer);
    return 0;
}

static void seen_dealloc(PyObject *self) {
    Seen *seen = (Seen *)self;
    Py_CLEAR(seen->reference);
    if (seen->where != seen->few) free(seen->where);
    release_object(self, seen_clear);
}

static Seen *new_seen(PyObject *observer, PyObject *tensor, int64_t step) {
    allocfunc allocate = (allocfunc)PyType_GetSlot(seen_type, Py_tp_alloc);
    Seen *seen = (Seen *)allocate(seen_type, 0);
    if (seen == NULL) return NULL;
    seen->where = seen->few;
    seen->capacity = FEW_SIGHTS;
    seen->step = step;
    Py_INCREF(observer);
    seen->observer = observer;
    seen->reference = PyWeakref_NewRef(tensor, NULL);
    if (seen->reference == NULL) Py_CLEAR(seen);
    return seen;
}

static int add_sight(Seen *seen, int32_t site, int32_t iteration) {
    if (seen->length == seen->capacity) {
        size_t size = (size_t)seen->capacity * 2 * sizeof *seen->where;
        Where *more = seen->where == seen->few ? malloc(size) : realloc(seen->where, size);
        if (more == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        if (seen->where == seen->few) memcpy(more, seen->few, sizeof seen->few);
        seen->where = more;
        seen->capacity *= 2;
    }
    seen->where[seen->length++] = (Where){site, iteration};
    return 0;
}

/* Where a gradient belongs to: the sights since the last one, or again the same. A leaf that several
 * iterations see has a gradient of each of their backward passes. */
static void turn_to_next(Seen *seen) {
    if (seen->told < seen->length) {
        seen->first = seen->told;
        seen->told = seen->length;
    }
}

/* ---------------------------------------------------------------- one sight */

/* A tensor that is seen, as far as must be known before anything is done. */
typedef struct {
    PyObject *tensor;
    Tensor read;
    uint64_t digest;
    int64_t version;
    int site, units;
} Sight;

static int is_true(PyObject *object, PyObject *name) {
    PyObject *answer = PyObject_GetAttr(object, name);
    int is = answer == NULL ? -1 : answer == Py_True;
    Py_XDECREF(answer);
    return is;
}

/* SLOW where Python has to look at the tensor. */
static int find_tensor(PyObject *tensor, Tensor *read) {
    if (read_tensor(tensor, read) == READ) return DONE;
    PyErr_Clear();
    return SLOW;
}

/* The same, for what a module is called with or returns, and for a gradient. */
static int find_live(PyObject *tensor, Tensor *read) {
    if (read_live(tensor, read) == READ) return DONE;
    PyErr_Clear();
    return SLOW;
}

/* How often it was changed in place; SLOW for one of inference mode, which counts no changes. */
static int version_of(PyObject *tensor, int64_t *version) {
    PyObject *number = PyObject_GetAttr(tensor, asked.version);
    if (number == NULL) {
        PyErr_Clear();
        return SLOW;
    }
    *version = PyLong_AsLongLong(number);
    Py_DECREF(number);
    return DONE;
}

/* What tells whether a tensor that is seen later is this one, unchanged. */
static int know_again(Sight *sight) {
    if (version_of(sight->tensor, &sight->version)) return SLOW;
    Tensor ordered = sight->read;
    sight->digest = quick_digest(&ordered);
    return DONE;
}

static int prepare_sight(Sight *sight, PyObject *tensor) {
    sight->tensor = tensor;
    return find_live(tensor, &sight->read) ? SLOW : know_again(sight);
}

/* The row, or -1 with an exception set. */
static int64_t observe_read(Sights *s, const Tensor *read, int site, int quantity, int iteration, int unit_dim) {
    Table *table = (Table *)s->table;
    Job job;
    job.tensor = *read;
    start_row(&job.row, read->dtype, table->order, iteration);
    job.row.site = site;
    job.row.quantity = (int16_t)quantity;
    start_job(&job, NO_DIGEST);
    job.unit_dim = unit_dim;
    if (run_jobs(&table->rows, &job, 1)) return -1;
    table->order++;
    return table->rows.length - 1;
}

static int repeat_read(Sights *s, int64_t row, int site, int iteration) {
    Table *table = (Table *)s->table;
    if (repeat_row(&table->rows, row, table->order, iteration, site)) return -1;
    table->order++;
    return 0;
}

/* Whether a weak reference is one to this object. */
static int refers_to(PyObject *reference, PyObject *object) {
    PyObject *found = PyObject_CallNoArgs(reference);
    int is = found == object;
    if (found == NULL) PyErr_Clear();
    Py_XDECREF(found);
    return is;
}

static int is_again(const Seen *seen, const Sight *sight) {
    return seen->has_mark && seen->digest == sight->digest && seen->version == sight->version &&
           refers_to(seen->reference, sight->tensor);
}

/* What register_hook does for a tensor that has no hook yet, but for a handle that nobody would use. */
static int set_hook(PyObject *self, PyObject *tensor, Seen *seen) {
    int failed = -1;
    PyObject *maker = PyObject_GetAttr(tensor, asked.grad_fn), *hooks = NULL;
    PyObject *before = maker ? PyObject_GetAttr(tensor, asked.backward_hooks) : NULL, *answer = NULL;
    if (before == Py_None && maker != Py_None) {
        hooks = PyObject_CallObject(asked.ordered_dict, NULL);
        if (hooks && !PyObject_SetItem(hooks, asked.ours, (PyObject *)seen) &&
            !PyObject_SetAttr(tensor, asked.backward_hooks, hooks))
            answer = PyObject_CallMethodObjArgs(maker, asked.register_hook_dict, tensor, NULL);
    } else if (before) {
        answer = PyObject_CallMethodObjArgs(self, asked.slow_hook, tensor, seen, NULL);
    }
    if (answer) failed = 0;
    Py_XDECREF(answer);
    Py_XDECREF(hooks);
    Py_XDECREF(before);
    Py_XDECREF(maker);
    return failed;
}

/* Waits for the tensor's gradient, once for all sites where it is seen. */
static int follow_sight(Sights *s, const Sight *sight, Seen *seen) {
    PyObject *pair = Py_BuildValue("(ii)", sight->site, s->iteration);
    int known = pair ? PySet_Contains(s->hooked, pair) : -1, failed = known < 0;
    if (known == 0) {
        failed = PySet_Add(s->hooked, pair);
        if (!failed && seen->length == 0) failed = set_hook((PyObject *)s, sight->tensor, seen);
        if (!failed) failed = add_sight(seen, sight->site, s->iteration);
    }
    Py_XDECREF(pair);
    return failed ? -1 : 0;
}

static Seen *see_anew(Sights *s, const Sight *sight, PyObject *key) {
    int64_t row = observe_read(s, &sight->read, sight->site, 0, s->iteration, sight->units);
    Seen *seen = row < 0 ? NULL : new_seen((PyObject *)s, sight->tensor, s->step);
    if (seen == NULL) return NULL;
    seen->digest = sight->digest;
    seen->version = sight->version;
    seen->has_mark = 1;
    seen->row = row;
    seen->units = sight->units;
    if (PyDict_SetItem(s->seen, key, (PyObject *)seen)) Py_CLEAR(seen);
    return seen;
}

/* A new reference, or NULL with an exception set. */
static Seen *look(Sights *s, const Sight *sight) {
    PyObject *key = PyLong_FromVoidPtr(sight->tensor);
    PyObject *known = key ? PyDict_GetItemWithError(s->seen, key) : NULL;
    Seen *seen = NULL;
    if (known && Py_TYPE(known) == seen_type && is_again((Seen *)known, sight)) {
        seen = (Seen *)known;
        Py_INCREF(seen);
        int failed = 0;
        if (seen->row >= 0 && seen->units == sight->units) failed = repeat_read(s, seen->row, sight->site, s->iteration);
        else if (seen->row != NO_ROW) failed = observe_read(s, &sight->read, sight->site, 0, s->iteration, sight->units) < 0;
        if (failed) Py_CLEAR(seen);
    } else if (key && !PyErr_Occurred()) {
        seen = see_anew(s, sight, key);
    }
    Py_XDECREF(key);
    return seen;
}

static int see(Sights *s, const Sight *sight) {
    Seen *seen = look(s, sight);
    int needs = seen ? is_true(sight->tensor, asked.requires_grad) : -1;
    int failed = needs < 0 || (needs && follow_sight(s, sight, seen));
    Py_XDECREF(seen);
    return failed ? FAILED : DONE;
}

/* ---------------------------------------------------------------- gradients */

/* A fault is told where all are; what that raises goes on, and so does what is no fault: the user interrupts. */
static PyObject *tell_fault(PyObject *self, const char *doing) {
    PyObject *type, *error, *trace;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "no reason was given");
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *words = PyUnicode_FromString(doing);
    PyObject *answer = words ? PyObject_CallMethodObjArgs(self, asked.fail, words, error, NULL) : NULL;
    Py_XDECREF(words);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return answer;
}

enum { WORTH_KNOWING = 1 << 16 /* elements: fewer are read in little more time than it takes to know them again */ };

/* Whether this is the gradient that was read last, unchanged. */
static int is_last_grad(const LastGrad *last, const Sights *s, const Sight *grad) {
    return last->reference && last->step == s->step && last->code == s->grad_code && last->version == grad->version &&
           last->digest == grad->digest && refers_to(last->reference, grad->tensor);
}

/* Reads a gradient for one place, or repeats the row of the last one; returns the row, or -1 with an exception set. */
static int64_t read_known_grad(Sights *s, const Sight *grad, const Where *at) {
    LastGrad *last = &s->last_grad;
    if (is_last_grad(last, s, grad)) return repeat_read(s, last->row, at->site, at->iteration) ? -1 : last->row;
    int64_t row = observe_read(s, &grad->read, at->site, s->grad_code, at->iteration, -1);
    Py_CLEAR(last->reference); /* to make another one may run a finalizer, which may come by here */
    *last = (LastGrad){row < 0 ? NULL : PyWeakref_NewRef(grad->tensor, NULL), grad->digest, grad->version, row, s->step, s->grad_code};
    return last->reference ? row : -1;
}

static int64_t read_grad(Sights *s, Sight *grad, const Where *at) {
    if (grad->read.count >= WORTH_KNOWING && know_again(grad) == DONE) return read_known_grad(s, grad, at);
    return observe_read(s, &grad->read, at->site, s->grad_code, at->iteration, -1);
}

static int see_gradient(Sights *s, Seen *seen, PyObject *grad) {
    Sight sight = {.tensor = grad};
    if (!s->is_plain || seen->length == 0 || find_live(grad, &sight.read)) return SLOW;
    turn_to_next(seen);
    const Where *at = seen->where + seen->first, *end = seen->where + seen->length;
    int64_t row = read_grad(s, &sight, at);
    for (at++; row >= 0 && at < end; at++)
        if (repeat_read(s, row, at->site, at->iteration)) row = -1;
    return row < 0 ? FAILED : DONE;
}

static PyObject *seen_call(PyObject *self, PyObject *arguments, PyObject *keywords) {
    Seen *seen = (Seen *)self;
    Sights *s = (Sights *)seen->observer;
    PyObject *grad = PyTuple_Size(arguments) == 1 ? PyTuple_GetItem(arguments, 0) : NULL, *answer = Py_None;
    (void)keywords;
    Py_INCREF(answer);
    if (grad == NULL || s == NULL || !s->is_open || seen->step != s->step) return answer;
    double started = seconds();
    Py_INCREF(s);
    s->has_backward = 1;
    int found = see_gradient(s, seen, grad);
    if (found != DONE) {
        Py_DECREF(answer);
        answer = found == SLOW ? PyObject_CallMethodObjArgs((PyObject *)s, asked.slow_grad, self, grad, NULL)
                               : tell_fault((PyObject *)s, "reading a gradient");
    }
    s->recording_secs += seconds() - started;
    Py_DECREF(s);
    return answer;
}

/* ---------------------------------------------------------------- Seen and Sights, as Python sees them */

/* Seen(observer, tensor, mark, row, units): a mark is (fingerprint, version) or None, a row may be None. */
static PyObject *seen_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *observer, *tensor, *mark, *row;
    int units;
    (void)type;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OOOOi", &observer, &tensor, &mark, &row, &units)) return NULL;
    unsigned long long digest = 0;
    long long version = 0;
    if (mark != Py_None && !PyArg_ParseTuple(mark, "KL", &digest, &version)) return NULL;
    long long number = row == Py_None ? NO_ROW : PyLong_AsLongLong(row);
    if (PyErr_Occurred()) return NULL;
    Seen *seen = new_seen(observer, tensor, ((Sights *)observer)->step);
    if (seen == NULL) return NULL;
    seen->has_mark = mark != Py_None;
    seen->digest = digest;
    seen->version = version;
    seen->row = number;
    seen->units = units;
    return (PyObject *)seen;
}

static PyObject *seen_is_again(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (check_given(given, 2, "is_again takes tensor, mark")) return NULL;
    Sight sight = {.tensor = arguments[0]};
    unsigned long long digest;
    long long version;
    if (arguments[1] == Py_None) Py_RETURN_FALSE;
    if (!PyArg_ParseTuple(arguments[1], "KL", &digest, &version)) return NULL;
    sight.digest = digest;
    sight.version = version;
    return PyBool_FromLong(is_again((Seen *)self, &sight));
}

static PyObject *seen_add_sight(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (check_given(given, 2, "add_sight takes site, iteration")) return NULL;
    int32_t site = (int32_t)PyLong_AsLong(arguments[0]), iteration = (int32_t)PyLong_AsLong(arguments[1]);
    if (PyErr_Occurred() || add_sight((Seen *)self, site, iteration)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *seen_take_sights(PyObject *self, PyObject *unused) {
    (void)unused;
    Seen *seen = (Seen *)self;
    turn_to_next(seen);
    PyObject *list = PyList_New(0);
    for (int i = seen->first; list && i < seen->length; i++) {
        PyObject *pair = Py_BuildValue("(ii)", seen->where[i].site, seen->where[i].iteration);
        if (pair == NULL || PyList_Append(list, pair)) Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *seen_row(PyObject *self, void *unused) {
    (void)unused;
    int64_t row = ((Seen *)self)->row;
    if (row == NO_ROW) Py_RETURN_NONE;
    return PyLong_FromLongLong(row);
}

static PyObject *seen_has_sights(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(((Seen *)self)->length > 0);
}

static PyMethodDef seen_methods[] = {
    {"is_again", METHOD(seen_is_again), METH_FASTCALL, "Whether this is that tensor, unchanged."},
    {"add_sight", METHOD(seen_add_sight), METH_FASTCALL, "The tensor is seen at a site, in an iteration."},
    {"take_sights", seen_take_sights, METH_NOARGS, "Where a gradient belongs to."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef seen_properties[] = {
    {"row", seen_row, NULL, "The row of its values, or None.", NULL},
    {"has_sights", seen_has_sights, NULL, "Whether its gradient is waited for.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef seen_members[] = {
    {"units", T_INT, offsetof(Seen, units), READONLY, "Which dimension counts units."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot seen_slots[] = {
    {Py_tp_doc, "A tensor as it was when it was read. Called with its gradient, it sees that."},
    {Py_tp_new, seen_new},
    {Py_tp_call, seen_call},
    {Py_tp_methods, seen_methods},
    {Py_tp_getset, seen_properties},
    {Py_tp_members, seen_members},
    {Py_tp_traverse, seen_traverse},
    {Py_tp_clear, seen_clear},
    {Py_tp_dealloc, seen_dealloc},
    {0, NULL},
};
static PyType_Spec seen_spec = {"backlight.reduce._kernel.Seen", sizeof(Seen), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                seen_slots};

/* Tells where torch's and Python's functions are, and which threads run passes that no run records. */
static PyObject *connect_sight(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *given[4], **kept[] = {&asked.ordered_dict, &asked.graph_task, &asked.tracing_state, &asked.threads_apart};
    if (!PyArg_ParseTuple(arguments, "OOOO!", &given[0], &given[1], &given[2], &PyDict_Type, &given[3])) return NULL;
    for (int i = 0; i < 4; i++) {
        Py_INCREF(given[i]);
        Py_XDECREF(*kept[i]);
        *kept[i] = given[i];
    }
    Py_RETURN_NONE;
}

static int name_what_is_asked(void) {
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&asked.version, "_version"},
        {&asked.requires_grad, "requires_grad"},
        {&asked.is_leaf, "is_leaf"},
        {&asked.grad_fn, "grad_fn"},
        {&asked.cdata, "_cdata"},
        {&asked.backward_hooks, "_backward_hooks"},
        {&asked.register_hook_dict, "_register_hook_dict"},
        {&asked.ours, "backlight"},
        {&asked.begin_pass, "_begin_pass"},
        {&asked.slow_hook, "_hook"},
        {&asked.slow_grad, "_on_grad"},
        {&asked.slow_before, "_before_call"},
        {&asked.slow_after, "_after_call"},
        {&asked.slow_parameter_grad, "_on_parameter_grad"},
        {&asked.grad, "grad"},
        {&asked.step, "step"},
        {&asked.state, "state"},
        {&asked.param_groups, "param_groups"},
        {&asked.generation, "generation"},
        {&asked.depth, "depth"},
        {&asked.is_fresh, "is_fresh"},
        {&asked.passes, "passes"},
        {&asked.last_step, "last_step"},
        {&asked.parameters, "_parameters"},
        {&asked.buffers, "_buffers"},
        {&asked.modules, "_modules"},
        {&asked.fail, "_fail"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (*names[i].name == NULL) *names[i].name = PyUnicode_InternFromString(names[i].text);
        if (*names[i].name == NULL) return -1;
    }
    return 0;
}

#endif
