/* The hooks on modules: which call of which module begins or ends, and what it is given or has returned. */
#ifndef BACKLIGHT_KERNEL_CALLS_H
#define BACKLIGHT_KERNEL_CALLS_H

#include <Python.h>
#include <structmember.h>

#include "_kernel_hook.h"

/* What is known of a tensor at a place of a call: its site, and for how many dimensions which counts units. */
typedef struct {
    int site, dims, units;
} Place;
static const Place UNKNOWN_PLACE = {-1, -1, -1};

/* One call of a module; the same in every step, so that what is known of it stays. */
typedef struct {
    PyObject_HEAD
    PyObject *module, *module_class, *places, *here; /* `here` is (module, number) */
    int number;
    char is_recomputed;
    Place in, out; /* of its only tensor; read from `places` when they are first wanted */
} Call;
static PyTypeObject *call_type;

/* A module, without keeping it alive, and its calls by their number. */
typedef struct {
    PyObject_HEAD
    PyObject *reference, *calls;
    int64_t round; /* in which `times` were counted */
    int times;
    signed char takes_keywords; /* 1, 0, or -1 where that is not known yet */
} Callee;
static PyTypeObject *callee_type;

typedef struct {
    PyObject_HEAD
    PyObject *sights;               /* an observer's */
    PyObject *callees;              /* dict: the identity of a module, and its Callee */
    PyObject *modules, *calls;      /* lists: those that run, the innermost last */
    PyObject *entered;              /* list: all calls of the step, as (module, number) */
    PyObject *course;               /* where steps begin, or None */
    PyObject *places;               /* tuple: torch's dictionaries of hooks, each with what is put there */
    double hooks_secs;
    int64_t round; /* calls are counted from 1 again in each */
    unsigned long thread;
    int rounds_since; /* how many iterations have begun since no call before may run again */
    char is_quick, is_listening, is_set; /* the last: in torch's dictionaries */
} CallHooks;
static PyTypeObject *hooks_type;

static int begin_captured(PyObject *course); /* of _kernel_course.h */

/* ---------------------------------------------------------------- plain calls */

/* Another thread, a pass of Backlight's own, a tracer, or a checkpoint's forward inside a backward pass. */
static int is_elsewhere(const CallHooks *h) {
    if (PyThread_get_thread_ident() != h->thread || PyDict_Size(asked.threads_apart)) return 1;
    PyObject *tracing = PyObject_CallNoArgs(asked.tracing_state);
    PyObject *task = tracing == Py_None ? PyObject_CallNoArgs(asked.graph_task) : NULL;
    int is = task == NULL || PyLong_AsLong(task) != -1;
    Py_XDECREF(tracing);
    Py_XDECREF(task);
    PyErr_Clear();
    return is;
}

/* Borrowed; NULL where it is not known. */
static Callee *find_callee(const CallHooks *h, PyObject *module) {
    PyObject *key = PyLong_FromVoidPtr(module);
    PyObject *found = key ? PyDict_GetItemWithError(h->callees, key) : NULL;
    Py_XDECREF(key);
    PyErr_Clear();
    return found && Py_TYPE(found) == callee_type && refers_to(((Callee *)found)->reference, module) ? (Callee *)found : NULL;
}

static int times_of(const CallHooks *h, const Callee *callee) { return callee->round == h->round ? callee->times : 0; }

static int read_place(const Call *call, const char *name, Place *place) {
    PyObject *known = PyDict_GetItemString(call->places, name);
    return known && PyArg_ParseTuple(known, "iii", &place->site, &place->dims, &place->units) ? DONE : SLOW;
}

/* What is to be seen of a call's only tensor; `sight->tensor` is NULL where the user left it out. */
static int prepare_place(const CallHooks *h, const Call *call, Place *place, const char *name, PyObject *tensor,
                         Sight *sight) {
    const Sights *s = (const Sights *)h->sights;
    if (!s->is_open || !s->is_quick || call->is_recomputed || call->number < 1) return SLOW;
    if (place->dims < 0 && read_place(call, name, place)) {
        PyErr_Clear();
        return SLOW;
    }
    if (prepare_sight(sight, tensor)) return SLOW;
    if (sight->read.dims != place->dims) {
        *place = UNKNOWN_PLACE; /* Python learns it anew */
        return SLOW;
    }
    sight->site = place->site;
    sight->units = place->units;
    if (place->site < 0) sight->tensor = NULL;
    return DONE;
}

static int see_place(const CallHooks *h, const Sight *sight) {
    return sight->tensor ? see((Sights *)h->sights, sight) : DONE;
}

/* A call begins that no other is around: a step may begin with it, in Python, and whether it is seen is decided. */
static int begin_pass(CallHooks *h, PyObject *module) {
    if (find_callee(h, module) == NULL) return SLOW;
    int begun = begin_captured(h->course);
    if (begun != SLOW) return begun;
    PyObject *answer = PyObject_CallMethodObjArgs((PyObject *)h, asked.begin_pass, NULL);
    int found = answer == NULL ? FAILED : answer == Py_True && h->is_quick ? DONE : SLOW;
    Py_XDECREF(answer);
    return found;
}

static int enter_quickly(CallHooks *h, PyObject *module, PyObject *arguments) {
    int is_outermost = PyList_Size(h->modules) < 1;
    if (!(h->is_quick || is_outermost) || !PyTuple_Check(arguments) || PyTuple_Size(arguments) != 1 || is_elsewhere(h))
        return SLOW;
    int found_pass = is_outermost ? begin_pass(h, module) : DONE;
    if (found_pass != DONE) return found_pass;
    Callee *callee = find_callee(h, module);
    if (callee == NULL || callee->takes_keywords) return SLOW;
    int number = times_of(h, callee) + 1;
    PyObject *found = number < PyList_Size(callee->calls) ? PyList_GetItem(callee->calls, number) : NULL;
    if (found == NULL || Py_TYPE(found) != call_type) return SLOW;
    Call *call = (Call *)found;
    Sight sight;
    if (prepare_place(h, call, &call->in, "in.0", PyTuple_GetItem(arguments, 0), &sight)) return SLOW;
    callee->round = h->round;
    callee->times = number;
    if (PyList_Append(h->modules, module) || PyList_Append(h->calls, found) || PyList_Append(h->entered, call->here))
        return FAILED;
    return see_place(h, &sight);
}

static int leave_quickly(CallHooks *h, PyObject *const *given) {
    PyObject *module = given[0], *keywords = given[2], *output = given[3];
    Py_ssize_t last = PyList_Size(h->modules) - 1;
    if (!h->is_quick || last < 0 || PyList_GetItem(h->modules, last) != module) return SLOW;
    if (!PyDict_Check(keywords) || PyDict_Size(keywords)) return SLOW;
    PyObject *found = PyList_GetItem(h->calls, last);
    if (found == NULL || Py_TYPE(found) != call_type) return SLOW;
    Call *call = (Call *)found;
    Sight sight;
    if (prepare_place(h, call, &call->out, "out.0", output, &sight)) return SLOW;
    if (PyList_SetSlice(h->modules, last, last + 1, NULL) || PyList_SetSlice(h->calls, last, last + 1, NULL)) return FAILED;
    return see_place(h, &sight);
}

/* ---------------------------------------------------------------- the hooks */

static PyObject *hooks_before(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    if (check_given(count, 2, "before takes module, arguments")) return NULL;
    CallHooks *h = (CallHooks *)self;
    double started = seconds();
    int found = enter_quickly(h, given[0], given[1]);
    h->hooks_secs += seconds() - started; /* a step may have begun */
    if (found == SLOW) return PyObject_CallMethodObjArgs(self, asked.slow_before, given[0], given[1], NULL);
    return found == DONE ? nothing() : tell_fault(self, "entering a module");
}

/* After an exception torch leaves out the keywords, and there is no output. */
static PyObject *hooks_after(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    CallHooks *h = (CallHooks *)self;
    double started = seconds();
    int found = count == 4 ? leave_quickly(h, given) : SLOW;
    if (found == SLOW) {
        PyObject *arguments = PyTuple_New(count), *method = PyObject_GetAttr(self, asked.slow_after), *answer = NULL;
        for (Py_ssize_t i = 0; arguments && i < count; i++) {
            Py_INCREF(given[i]);
            PyTuple_SetItem(arguments, i, given[i]);
        }
        if (arguments && method) answer = PyObject_CallObject(method, arguments);
        Py_XDECREF(arguments);
        Py_XDECREF(method);
        return answer;
    }
    h->hooks_secs += seconds() - started;
    return found == DONE ? nothing() : tell_fault(self, "reading the output of a module");
}

/* ---------------------------------------------------------------- as Python sees them */

static PyObject *call_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *module, *module_class;
    int number, is_recomputed;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OOip", &module, &module_class, &number, &is_recomputed)) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Call *call = (Call *)allocate(type, 0);
    if (call == NULL) return NULL;
    Py_INCREF(module);
    Py_INCREF(module_class);
    call->module = module;
    call->module_class = module_class;
    call->number = number;
    call->is_recomputed = (char)is_recomputed;
    call->places = PyDict_New();
    call->here = Py_BuildValue("(Oi)", module, number);
    call->in = call->out = UNKNOWN_PLACE;
    if (call->places == NULL || call->here == NULL) Py_CLEAR(call);
    return (PyObject *)call;
}

/* It holds nothing but texts and numbers, so there is nothing to collect. */
static void call_dealloc(PyObject *self) {
    Call *call = (Call *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_CLEAR(call->module);
    Py_CLEAR(call->module_class);
    Py_CLEAR(call->places);
    Py_CLEAR(call->here);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMemberDef call_members[] = {
    {"module", T_OBJECT_EX, offsetof(Call, module), READONLY, "The module's qualified name."},
    {"module_class", T_OBJECT_EX, offsetof(Call, module_class), READONLY, "The name of its class."},
    {"number", T_INT, offsetof(Call, number), READONLY, "1 for the first call in the iteration; 0 where unknown."},
    {"is_recomputed", T_BOOL, offsetof(Call, is_recomputed), READONLY, "Whether it runs again inside the backward pass."},
    {"places", T_OBJECT_EX, offsetof(Call, places), READONLY, "By the place of a tensor what is known of it."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot call_slots[] = {
    {Py_tp_doc, "One call of a module."}, {Py_tp_new, call_new}, {Py_tp_members, call_members}, {Py_tp_dealloc, call_dealloc}, {0, NULL},
};
static PyType_Spec call_spec = {"backlight.reduce._kernel.Call", sizeof(Call), 0, Py_TPFLAGS_DEFAULT, call_slots};

/* Callee(reference, calls) */
static PyObject *callee_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *reference, *calls;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OO!", &reference, &PyList_Type, &calls)) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Callee *callee = (Callee *)allocate(type, 0);
    if (callee == NULL) return NULL;
    Py_INCREF(reference);
    Py_INCREF(calls);
    callee->reference = reference;
    callee->calls = calls;
    callee->round = -1;
    callee->takes_keywords = -1;
    return (PyObject *)callee;
}

/* A weak reference without a callback, and calls, which hold texts: nothing leads back here. */
static void callee_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_CLEAR(((Callee *)self)->reference);
    Py_CLEAR(((Callee *)self)->calls);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMemberDef callee_members[] = {
    {"reference", T_OBJECT_EX, offsetof(Callee, reference), READONLY, "A weak reference to the module."},
    {"calls", T_OBJECT_EX, offsetof(Callee, calls), READONLY, "Its calls, by their number."},
    {"round", T_LONGLONG, offsetof(Callee, round), 0, "The round in which `times` were counted."},
    {"times", T_INT, offsetof(Callee, times), 0, "How often it was called in that round."},
    {"takes_keywords", T_BYTE, offsetof(Callee, takes_keywords), 0, "Whether its calls have keywords: 1, 0, or -1 where that is not known yet."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot callee_slots[] = {
    {Py_tp_doc, "A module, and its calls."}, {Py_tp_new, callee_new}, {Py_tp_members, callee_members}, {Py_tp_dealloc, callee_dealloc}, {0, NULL},
};
static PyType_Spec callee_spec = {"backlight.reduce._kernel.Callee", sizeof(Callee), 0, Py_TPFLAGS_DEFAULT, callee_slots};

static int hooks_traverse(PyObject *self, visitproc visit, void *arg) {
    CallHooks *h = (CallHooks *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(h->sights);
    Py_VISIT(h->callees);
    Py_VISIT(h->modules);
    Py_VISIT(h->calls);
    Py_VISIT(h->entered);
    Py_VISIT(h->course);
    Py_VISIT(h->places);
    return 0;
}

static int hooks_clear(PyObject *self) {
    CallHooks *h = (CallHooks *)self;
    h->is_quick = 0;
    Py_CLEAR(h->sights);
    Py_CLEAR(h->callees);
    Py_CLEAR(h->modules);
    Py_CLEAR(h->calls);
    Py_CLEAR(h->entered);
    Py_CLEAR(h->course);
    Py_CLEAR(h->places);
    return 0;
}

static void hooks_dealloc(PyObject *self) { release_object(self, hooks_clear); }

static PyMethodDef hooks_methods[] = {
    {"before", METHOD(hooks_before), METH_FASTCALL, "A module is called: torch's hook."},
    {"after", METHOD(hooks_after), METH_FASTCALL, "A module has returned, or raised: torch's hook."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef hooks_members[] = {
    {"_sights", T_OBJECT, offsetof(CallHooks, sights), 0, "What the calls' tensors are seen by."},
    {"_callees", T_OBJECT, offsetof(CallHooks, callees), 0, "The modules that are known, by their identity."},
    {"_modules", T_OBJECT, offsetof(CallHooks, modules), 0, "The modules that run, the innermost last."},
    {"_open", T_OBJECT, offsetof(CallHooks, calls), 0, "Their calls."},
    {"entered", T_OBJECT, offsetof(CallHooks, entered), 0, "Every call of the step, as (module, number)."},
    MEMBER(CallHooks, T_DOUBLE, hooks_secs, "What the hooks took, until someone puts it back to 0."),
    {"course", T_OBJECT, offsetof(CallHooks, course), 0, "Where steps begin that are like the last one."},
    {"_hooks", T_OBJECT, offsetof(CallHooks, places), 0, "Torch's dictionaries of hooks, each with what is put there."},
    {"_is_listening", T_BOOL, offsetof(CallHooks, is_listening), 0, "Whether calls are told of."},
    {"_is_set", T_BOOL, offsetof(CallHooks, is_set), 0, "Whether it is in those dictionaries."},
    {"_round", T_LONGLONG, offsetof(CallHooks, round), 0, "Calls are counted from 1 again in each."},
    {"_rounds_since", T_INT, offsetof(CallHooks, rounds_since), 0, "How many iterations have begun since no call before may run again."},
    {"_thread", T_ULONG, offsetof(CallHooks, thread), 0, "The thread that trains."},
    MEMBER(CallHooks, T_BOOL, is_quick, "Whether plain calls need no Python."),
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot hooks_slots[] = {
    {Py_tp_doc, "The hooks on modules."},
    {Py_tp_methods, hooks_methods},
    {Py_tp_members, hooks_members},
    {Py_tp_traverse, hooks_traverse},
    {Py_tp_clear, hooks_clear},
    {Py_tp_dealloc, hooks_dealloc},
    {0, NULL},
};
static PyType_Spec hooks_spec = {"backlight.reduce._kernel.CallHooks", sizeof(CallHooks), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, hooks_slots};

#endif
