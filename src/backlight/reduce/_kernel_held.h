/* Parameters around an optimizer's step: their gradients as autograd made them and as they are applied, their
 * updates, and what the optimizer keeps for them; of all parameters together, on all threads.
 *
 * As in _kernel_sight.h, what is not plain is left to Python (capture/owned.py) before anything was done.
 */
#ifndef BACKLIGHT_KERNEL_HELD_H
#define BACKLIGHT_KERNEL_HELD_H

#include <Python.h>
#include <structmember.h>

#include "_kernel_sight.h"

enum { VALUE_CODE, GRAD_APPLIED_CODE = 2, UPDATE_CODE }; /* as spec.py has them */

/* A parameter or a buffer of a module. Called with a gradient of it, it sees that. */
typedef struct {
    PyObject_HEAD
    PyObject *observer;
    PyObject *owner, *shelf, *place; /* a weak reference to its module, and where it is found there */
    PyObject *before;                /* its value before an update, or None */
    PyObject *states;                /* dict: what the optimizer keeps for it, and the site of that */
    PyObject *hooks, *key;           /* the parameter's hooks, if it is among them, and its place there; or None */
    PyObject *sole_hooks;            /* with it alone, or NULL */
    unsigned long long identity, hooked; /* of the parameter; of the tensor inside of it that `hooks` were set on */
    int64_t made_step;
    uint64_t made_digest; /* of the gradient as autograd made it, once, in the step; 0 if it did so otherwise */
    int site, times_made;
    char is_before_known, is_first_hook, has_others; /* of the last: the user has put hooks beside ours */
} Held;

static int held_traverse(PyObject *self, visitproc visit, void *arg) {
    Held *held = (Held *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(held->observer);
    Py_VISIT(held->before);
    Py_VISIT(held->states);
    Py_VISIT(held->hooks);
    Py_VISIT(held->key);
    Py_VISIT(held->sole_hooks);
    return 0;
}

static int held_clear(PyObject *self) {
    Held *held = (Held *)self;
    Py_CLEAR(held->observer);
    Py_CLEAR(held->before);
    Py_CLEAR(held->states);
    Py_CLEAR(held->hooks);
    Py_CLEAR(held->key);
    Py_CLEAR(held->sole_hooks);
    return 0;
}

static void held_dealloc(PyObject *self) {
    Held *held = (Held *)self;
    Py_CLEAR(held->owner);
    Py_CLEAR(held->shelf);
    Py_CLEAR(held->place);
    release_object(self, held_clear);
}

/* ---------------------------------------------------------------- gradients as autograd makes them */

/* The step under way; -1 once the collector has been here. */
static int64_t step_of(const Held *held) { return held->observer ? ((Sights *)held->observer)->step : -1; }

static void note_made(Held *held, uint64_t digest) {
    int64_t step = step_of(held);
    if (held->made_step != step) held->times_made = 0;
    held->made_step = step;
    held->made_digest = held->times_made ? 0 : digest; /* of several, none is what is applied */
    held->times_made++;
}

static int has_made(const Held *held) { return held->made_step == step_of(held) && held->times_made > 0; }

static int see_made(Sights *s, Held *held, PyObject *grad) {
    Table *table = (Table *)s->table;
    Job job;
    if (!s->is_native || find_live(grad, &job.tensor)) return SLOW;
    start_row(&job.row, job.tensor.dtype, table->order, s->iteration);
    job.row.site = held->site;
    job.row.quantity = (int16_t)s->grad_code;
    start_job(&job, has_made(held) ? NO_DIGEST : WITH_DIGEST);
    if (run_jobs(&table->rows, &job, 1)) return FAILED;
    table->order++;
    note_made(held, job.digest);
    return DONE;
}

static PyObject *held_call(PyObject *self, PyObject *arguments, PyObject *keywords) {
    Held *held = (Held *)self;
    Sights *s = (Sights *)held->observer;
    PyObject *grad = PyTuple_Size(arguments) == 1 ? PyTuple_GetItem(arguments, 0) : NULL, *answer = NULL;
    (void)keywords;
    if (grad == NULL || s == NULL || !s->is_open) Py_RETURN_NONE;
    double started = seconds();
    Py_INCREF(s);
    s->has_backward = 1;
    int found = see_made(s, held, grad);
    if (found == DONE) {
        answer = Py_None;
        Py_INCREF(answer);
    } else if (found == SLOW) {
        answer = PyObject_CallMethodObjArgs((PyObject *)s, asked.slow_parameter_grad, self, grad, NULL);
    } else {
        answer = tell_fault((PyObject *)s, "reading a parameter's gradient");
    }
    s->recording_secs += seconds() - started;
    Py_DECREF(s);
    return answer;
}

/* ---------------------------------------------------------------- many parameters at once */

/* What is read of all of them: room for so many jobs, and what must stay alive meanwhile. */
typedef struct {
    Job *jobs;
    PyObject **kept;
    int64_t length, kept_length, capacity;
} Batch;

static int open_batch(Batch *b, int64_t capacity) {
    *b = (Batch){.jobs = malloc(((size_t)capacity + 1) * sizeof(Job)), .kept = malloc(((size_t)capacity + 1) * sizeof(PyObject *)), .capacity = capacity};
    return b->jobs && b->kept ? 0 : -1;
}

static void close_batch(Batch *b) {
    for (int64_t i = 0; i < b->kept_length; i++) Py_DECREF(b->kept[i]);
    free(b->jobs);
    free(b->kept);
}

/* How a tensor is read: one that the optimizer computes with in this very step, or any. */
typedef int (*Find)(PyObject *, Tensor *);

/* Adds a tensor, kept alive until the batch is closed. The job, or NULL where Python must read it. */
static Job *add_job(Batch *b, PyObject *tensor, int site, int quantity, Find find) {
    Job *job = &b->jobs[b->length];
    if (b->length == b->capacity || find(tensor, &job->tensor)) return NULL;
    start_row(&job->row, job->tensor.dtype, 0, 0);
    job->row.site = site;
    job->row.quantity = (int16_t)quantity;
    start_job(job, NO_DIGEST);
    Py_INCREF(tensor);
    b->kept[b->kept_length++] = tensor;
    b->length++;
    return job;
}

/* The rows of the first jobs, in order; the others were only digested. */
static int run_batch(Sights *s, Batch *b, int64_t rows) {
    Table *table = (Table *)s->table;
    Crew crew;
    for (int64_t i = 0; i < rows; i++) {
        b->jobs[i].row.order = table->order + (int32_t)i;
        b->jobs[i].row.iteration = s->update_iteration;
    }
    int failed = b->length && run_crew(&crew, b->jobs, b->length);
    if (!failed && add_jobs(&table->rows, b->jobs, rows)) {
        PyErr_NoMemory();
        failed = -1;
    }
    for (int64_t i = rows; i < b->length && !failed; i++) b->jobs[i].digest = digest_of(&b->jobs[i]);
    if (b->length) dismiss(&crew);
    if (!failed) table->order += (int)rows;
    return failed;
}

/* The pair (held, parameter) at a place of the list; borrowed. */
static int read_pair(PyObject *trained, Py_ssize_t place, Held **held, PyObject **parameter) {
    PyObject *pair = PyList_GetItem(trained, place);
    if (pair == NULL || !PyTuple_Check(pair) || PyTuple_Size(pair) != 2) return -1;
    *held = (Held *)PyTuple_GetItem(pair, 0);
    *parameter = PyTuple_GetItem(pair, 1);
    return 0;
}

/* ---------------------------------------------------------------- before the optimizer's step */

/* SLOW where Python has to make room for it first. */
static int use_before(Job *job, const Held *held, int (*use)(Job *, const Tensor *)) {
    Tensor before;
    if (held->before == NULL || read_own(held->before, &before) != READ) return SLOW;
    return use(job, &before) == READ ? DONE : SLOW;
}

/* Adds a parameter's value, copied where it has a gradient. */
static int add_value(Batch *values, Held *held, PyObject *parameter, int is_moving) {
    Job *job = add_job(values, parameter, held->site, VALUE_CODE, is_moving ? find_live : find_tensor);
    if (job == NULL) return SLOW;
    if (!is_moving) return DONE;
    return use_before(job, held, copy_to);
}

/* Is the gradient what autograd made of it? The job has digested it. A clipping that had nothing to clip has changed its
 * version and nothing else. */
static int is_as_made(const Held *held, const Job *job) { return job->digest && job->digest == held->made_digest; }

/* The parameters' values to `values`, and behind them for a digest the gradients that may be those that autograd
 * made; all gradients to `applied`. The answer is how many rows `values` has; below 0 that Python must do it. */
static int64_t gather_before(PyObject *trained, Batch *values, Batch *applied) {
    Held *held;
    PyObject *parameter;
    for (Py_ssize_t i = 0; i < PyList_Size(trained); i++) {
        if (read_pair(trained, i, &held, &parameter)) return -1;
        if (held->site < 0) continue;
        PyObject *grad = PyObject_GetAttr(parameter, asked.grad);
        int is_bad = grad == NULL || add_value(values, held, parameter, grad != Py_None) ||
                     (grad != Py_None && add_job(applied, grad, held->site, GRAD_APPLIED_CODE, find_live) == NULL);
        if (!is_bad && grad != Py_None) applied->jobs[applied->length - 1].owner = held;
        Py_XDECREF(grad);
        if (is_bad) return -1;
    }
    int64_t rows = values->length;
    for (int64_t i = 0; i < applied->length; i++) {
        held = applied->jobs[i].owner;
        if (!has_made(held) || !held->made_digest) continue;
        Job *job = &values->jobs[values->length++];
        job->tensor = applied->jobs[i].tensor; /* which `applied` keeps alive */
        start_job(job, ONLY_DIGEST);
        job->owner = held;
    }
    return rows;
}

/* Leaves out the gradients that are as autograd made them. */
static void drop_as_made(Batch *applied, const Batch *values, int64_t rows) {
    int64_t kept = 0, next = rows;
    for (int64_t i = 0; i < applied->length; i++) {
        const Job *digest = next < values->length ? &values->jobs[next] : NULL;
        int is_compared = digest && digest->owner == applied->jobs[i].owner;
        next += is_compared;
        if (is_compared && is_as_made(digest->owner, digest)) continue;
        applied->jobs[kept++] = applied->jobs[i];
    }
    applied->length = kept; /* what is left in `kept` only stays alive */
}

/* What has a gradient was copied. */
static void note_copies(const Batch *applied) {
    for (int64_t i = 0; i < applied->length; i++) ((Held *)applied->jobs[i].owner)->is_before_known = 1;
}

/* Whether it was done: where not, nothing was. */
static PyObject *sights_before_update(PyObject *self, PyObject *trained) {
    Sights *s = (Sights *)self;
    if (!s->is_native || !PyList_Check(trained)) Py_RETURN_FALSE;
    int64_t count = PyList_Size(trained), rows = -1;
    Batch values, applied;
    int failed = open_batch(&values, 2 * count) | open_batch(&applied, count);
    if (failed) PyErr_NoMemory();
    else rows = gather_before(trained, &values, &applied);
    if (rows >= 0) {
        failed = run_batch(s, &values, rows);
        if (!failed) {
            note_copies(&applied);
            drop_as_made(&applied, &values, rows);
            failed = run_batch(s, &applied, applied.length);
        }
    } else if (!failed) {
        PyErr_Clear();
    }
    close_batch(&values);
    close_batch(&applied);
    return failed ? NULL : PyBool_FromLong(rows >= 0);
}

/* ---------------------------------------------------------------- after it */

static int is_plain_number(PyObject *value) {
    return value == Py_None || PyFloat_Check(value) || PyLong_Check(value);
}

/* What the optimizer keeps for a parameter; its step counter says nothing that is not known. */
static int add_states(Batch *b, const Held *held, PyObject *states, Find find) {
    PyObject *key, *state;
    Py_ssize_t at = 0;
    if (!PyDict_Check(states)) return -1;
    while (PyDict_Next(states, &at, &key, &state)) {
        if (is_plain_number(state) || PyObject_RichCompareBool(key, asked.step, Py_EQ) == 1) continue;
        PyObject *site = PyDict_GetItemWithError(held->states, key);
        if (site == NULL) return -1; /* Python learns it */
        int number = (int)PyLong_AsLong(site);
        if (number >= 0 && add_job(b, state, number, VALUE_CODE, find) == NULL) return -1;
    }
    return 0;
}

/* The states of all parameters must come in the parameters' order, so that none has to be looked up: a tensor's
 * hash is worked out in Python. */
static int gather_after(PyObject *trained, PyObject *states, Batch *b) {
    Held *held;
    PyObject *parameter, *key = NULL, *state = NULL;
    Py_ssize_t at = 0;
    int has_state = states != Py_None && PyDict_Next(states, &at, &key, &state);
    for (Py_ssize_t i = 0; i < PyList_Size(trained); i++) {
        if (read_pair(trained, i, &held, &parameter)) return -1;
        int is_moved = 0;
        if (held->is_before_known) {
            PyObject *grad = PyObject_GetAttr(parameter, asked.grad);
            is_moved = grad != NULL && grad != Py_None;
            Py_XDECREF(grad);
            Job *job = is_moved ? add_job(b, parameter, held->site, UPDATE_CODE, find_live) : NULL;
            if (is_moved && (job == NULL || use_before(job, held, take_away))) return -1;
        }
        if (has_state && key == parameter) {
            if (add_states(b, held, state, is_moved ? find_live : find_tensor)) return -1;
            has_state = PyDict_Next(states, &at, &key, &state);
        }
    }
    return has_state ? -1 : 0;
}

static Py_ssize_t count_states(PyObject *states) {
    PyObject *key, *state;
    Py_ssize_t at = 0, count = 0;
    while (states != Py_None && PyDict_Next(states, &at, &key, &state)) count += PyDict_Check(state) ? PyDict_Size(state) : 0;
    return count;
}

/* after_update(trained, states or None): whether it was done; where not, nothing was. */
static PyObject *sights_after_update(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    if (check_given(count, 2, "after_update takes trained, states")) return NULL;
    Sights *s = (Sights *)self;
    PyObject *trained = given[0], *states = given[1];
    if (!s->is_native || !PyList_Check(trained) || (states != Py_None && !PyDict_Check(states))) Py_RETURN_FALSE;
    Batch b;
    int failed = open_batch(&b, PyList_Size(trained) + count_states(states)), is_done = 0;
    if (failed) PyErr_NoMemory();
    else is_done = !gather_after(trained, states, &b);
    if (is_done) failed = run_batch(s, &b, b.length);
    else if (!failed) PyErr_Clear();
    for (Py_ssize_t i = 0; is_done && i < PyList_Size(trained); i++) {
        Held *held;
        PyObject *parameter;
        if (!read_pair(trained, i, &held, &parameter)) held->is_before_known = 0;
    }
    close_batch(&b);
    return failed ? NULL : PyBool_FromLong(is_done);
}

/* ---------------------------------------------------------------- as Python sees it */

/* The tensor that is found there now, borrowed; NULL if it is another one, or where Python must look. */
static PyObject *find_held(const Held *held, int *is_odd) {
    PyObject *owner = held->owner ? PyObject_CallNoArgs(held->owner) : NULL;
    PyObject *shelf = owner && owner != Py_None ? PyObject_GetAttr(owner, held->shelf) : NULL, *found = NULL;
    if (shelf && PyDict_Check(shelf)) found = PyDict_GetItemWithError(shelf, held->place);
    else *is_odd |= shelf != NULL; /* that of a scripted module */
    PyErr_Clear();
    Py_XDECREF(owner);
    Py_XDECREF(shelf); /* the module's own, which keeps the tensor */
    return (unsigned long long)(uintptr_t)found == held->identity ? found : NULL;
}

/* The pairs (held, tensor) of those that are still there; None where Python must look. */
static PyObject *pairs_of_held(PyObject *module, PyObject *list) {
    (void)module;
    int is_odd = 0;
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "find_held takes a list");
        return NULL;
    }
    PyObject *pairs = PyList_New(0);
    for (Py_ssize_t i = 0; pairs && i < PyList_Size(list); i++) {
        PyObject *held = PyList_GetItem(list, i), *tensor = find_held((Held *)held, &is_odd);
        PyObject *pair = tensor ? PyTuple_Pack(2, held, tensor) : NULL;
        if (tensor && (pair == NULL || PyList_Append(pairs, pair))) Py_CLEAR(pairs);
        Py_XDECREF(pair);
    }
    if (pairs && is_odd) {
        Py_DECREF(pairs);
        Py_RETURN_NONE;
    }
    return pairs;
}

static PyObject *held_note_made(PyObject *self, PyObject *number) {
    uint64_t digest = number == Py_None ? 0 : PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred()) return NULL;
    note_made((Held *)self, digest);
    Py_RETURN_NONE;
}

static PyObject *held_made(PyObject *self, void *unused) {
    Held *held = (Held *)self;
    (void)unused;
    if (!has_made(held) || !held->made_digest) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(held->made_digest);
}

static PyObject *held_has_been_made(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(has_made((Held *)self));
}

static int held_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    Held *held = (Held *)self;
    PyObject *given[4];
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OOOOKi", &given[0], &given[1], &given[2], &given[3], &held->identity, &held->site))
        return -1;
    PyObject **kept[] = {&held->observer, &held->owner, &held->shelf, &held->place};
    for (int i = 0; i < 4; i++) {
        Py_INCREF(given[i]);
        Py_XDECREF(*kept[i]);
        *kept[i] = given[i];
    }
    held->made_step = -1;
    Py_XDECREF(held->states);
    held->states = PyDict_New();
    return held->states ? 0 : -1;
}

static PyMethodDef held_methods[] = {
    {"note_made", held_note_made, METH_O, "Autograd has made a gradient, of this fingerprint or None."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef held_properties[] = {
    {"made", held_made, NULL, "The fingerprint of the gradient that autograd made, if it made one, in this step; else None.", NULL},
    {"has_been_made", held_has_been_made, NULL, "Whether autograd has made a gradient in this step.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef held_members[] = {
    {"site", T_INT, offsetof(Held, site), READONLY, "Its site."},
    {"before", T_OBJECT, offsetof(Held, before), 0, "Its value before an update, or None."},
    {"hooks", T_OBJECT, offsetof(Held, hooks), 0, "The parameter's hooks, if it is among them; else None."},
    {"key", T_OBJECT, offsetof(Held, key), 0, "Its key among them."},
    {"hooked", T_ULONGLONG, offsetof(Held, hooked), 0, "The `_cdata` that the parameter had when it was put among them."},
    {"has_others", T_BOOL, offsetof(Held, has_others), 0, "Whether the user had put others beside it, when that was last looked at."},
    {"is_first_hook", T_BOOL, offsetof(Held, is_first_hook), 0, "Whether nobody had put one on the parameter before."},
    {"states", T_OBJECT, offsetof(Held, states), READONLY, "What the optimizer keeps for it, and the site of that."},
    {"is_before_known", T_BOOL, offsetof(Held, is_before_known), 0, "Whether `before` is of the update under way."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot held_slots[] = {
    {Py_tp_doc, "A parameter or a buffer of a module. Called with a gradient of it, it sees that."},
    {Py_tp_init, held_init},
    {Py_tp_call, held_call},
    {Py_tp_methods, held_methods},
    {Py_tp_getset, held_properties},
    {Py_tp_members, held_members},
    {Py_tp_traverse, held_traverse},
    {Py_tp_clear, held_clear},
    {Py_tp_dealloc, held_dealloc},
    {0, NULL},
};
static PyType_Spec held_spec = {"backlight.reduce._kernel.Held", sizeof(Held), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, held_slots};

/* ---------------------------------------------------------------- Sights, as Python sees them */

static int sights_traverse(PyObject *self, visitproc visit, void *arg) {
    Sights *s = (Sights *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(s->table);
    Py_VISIT(s->seen);
    Py_VISIT(s->hooked);
    return 0;
}

static int sights_clear(PyObject *self) {
    Sights *s = (Sights *)self;
    s->is_open = s->is_native = s->is_plain = s->is_quick = 0; /* so that nothing is looked for in what is gone */
    Py_CLEAR(s->table);
    Py_CLEAR(s->seen);
    Py_CLEAR(s->hooked);
    Py_CLEAR(s->last_grad.reference);
    return 0;
}

static void sights_dealloc(PyObject *self) { release_object(self, sights_clear); }

/* Called once: where rows go, and what is shared with Python. */
static PyObject *sights_use(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    if (check_given(given, 3, "use takes table, seen, hooked")) return NULL;
    Sights *s = (Sights *)self;
    PyObject **kept[] = {&s->table, &s->seen, &s->hooked};
    for (int i = 0; i < 3; i++) {
        Py_INCREF(arguments[i]);
        Py_XDECREF(*kept[i]);
        *kept[i] = arguments[i];
    }
    Py_RETURN_NONE;
}

/* see(tensor, site, units): whether that was plain, and done; where not, nothing was. */
static PyObject *sights_see(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    if (check_given(count, 3, "see takes tensor, site, units")) return NULL;
    Sights *s = (Sights *)self;
    Sight sight;
    if (!s->is_open || !s->is_quick || prepare_sight(&sight, given[0])) Py_RETURN_FALSE;
    sight.site = (int)PyLong_AsLong(given[1]);
    sight.units = (int)PyLong_AsLong(given[2]);
    if (PyErr_Occurred() || see(s, &sight)) return NULL;
    Py_RETURN_TRUE;
}

static PyMethodDef sights_methods[] = {
    {"see", METHOD(sights_see), METH_FASTCALL, "A tensor is seen at a site; whether that was plain, and done."},
    {"use", METHOD(sights_use), METH_FASTCALL, "Say where rows go, and what is shared: table, seen, hooked."},
    {"before_update", sights_before_update, METH_O, "An optimizer is about to step; whether that was plain, and read."},
    {"after_update", METHOD(sights_after_update), METH_FASTCALL, "It has stepped; whether that was plain, and read."},
    {NULL, NULL, 0, NULL},
};
#define MEMBER(TYPE, KIND, NAME, DOC) {#NAME, KIND, offsetof(TYPE, NAME), 0, DOC}
static PyMemberDef sights_members[] = {
    MEMBER(Sights, T_DOUBLE, recording_secs, "What seeing took in the step."),
    MEMBER(Sights, T_LONGLONG, step, "The step under way."),
    MEMBER(Sights, T_INT, iteration, "Its iteration."),
    MEMBER(Sights, T_INT, update_iteration, "The iteration that the update under way is of."),
    MEMBER(Sights, T_INT, grad_code, "The quantity of its gradients."),
    MEMBER(Sights, T_BOOL, is_open, "Whether a step is seen."),
    MEMBER(Sights, T_BOOL, has_backward, "Whether a gradient was seen since the last forward pass."),
    MEMBER(Sights, T_BOOL, is_native, "Whether the kernel's statistics are all that is made of elements."),
    MEMBER(Sights, T_BOOL, is_plain, "Whether, besides, no elements are kept."),
    MEMBER(Sights, T_BOOL, is_quick, "Whether, besides, the graph is not followed."),
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot sights_slots[] = {
    {Py_tp_doc, "What a step sees."},
    {Py_tp_methods, sights_methods},
    {Py_tp_members, sights_members},
    {Py_tp_traverse, sights_traverse},
    {Py_tp_clear, sights_clear},
    {Py_tp_dealloc, sights_dealloc},
    {0, NULL},
};
static PyType_Spec sights_spec = {"backlight.reduce._kernel.Sights", sizeof(Sights), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, sights_slots};

#endif
