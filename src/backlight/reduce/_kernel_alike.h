/* A step that is captured and is like the one before: how it begins, its loss, and its update.
 *
 * What Python touches for that has left the caches by then, and costs a small network as much as all its activations. So
 * before such a step Python says what is the same as ever, and where that holds when the step comes, it is dealt with
 * here; else by Python, before anything was done, and from then on until the step has ended. Its end is Python's. */
#ifndef BACKLIGHT_KERNEL_ALIKE_H
#define BACKLIGHT_KERNEL_ALIKE_H

#include <Python.h>
#include <structmember.h>

#include "_kernel_calls.h"
#include "_kernel_hook.h"
#include "_kernel_owner.h"

enum { NO_UNIT_DIM = -1 };

/* What a likeness is made with, once, and what it is told before each step. */
enum { CALLS, SIGHTS, NAMES, SEEN_NAMED, FOUND_LOSSES, NAMED_TENSORS, STRANDED, LOADED, UPDATES, ONCE };
enum { HELD, SIZES, UNHOOKED, KEY_OF_HOOKS, IDENTITIES, TRAINED, RULES, GENERATION, CAPTURE, EACH };

typedef struct {
    PyObject_HEAD
    PyObject *once[ONCE], *each[EACH];
    PyObject *stepping; /* pairs (held, parameter) of the update under way, or NULL */
    int loss_site, depth, passes; /* `depth` of updates inside of updates, and the backward passes there were before it */
    long long left, begun;        /* how many steps may yet begin here, and how many have, since that was asked */
    char has_states, is_under_way, is_given_up; /* of an update that is Python's, the rest is, too */
} Likeness;

static PyObject *compiler_rules; /* the name of the module that has them */

/* ---------------------------------------------------------------- is it so still? */

static int is_generation(const Likeness *l) {
    PyObject *now = PyObject_GetAttr(l->once[NAMES], asked.generation);
    int is = now && PyObject_RichCompareBool(now, l->each[GENERATION], Py_EQ) == 1;
    Py_XDECREF(now);
    return is;
}

/* torch's compiler, once it is loaded, has to be told of hooks. */
static int knows_compiler(const Likeness *l) {
    PyObject *rules = PyDict_GetItemWithError(l->once[LOADED], compiler_rules);
    return rules == NULL ? !PyErr_Occurred() : rules == l->each[RULES];
}

static int is_yes(PyObject *answer, PyObject *expected) {
    Py_XDECREF(answer); /* True and False stay */
    return answer == expected;
}

static int is_as_expected(const Likeness *l) {
    return is_generation(l) && knows_compiler(l) && PyObject_Size(l->once[STRANDED]) == 0 && PyDict_Size(l->once[UPDATES]) == 0 &&
           is_yes(are_held(NULL, l->each[HELD]), Py_True) && is_yes(sizes_differ(NULL, l->each[SIZES]), Py_False);
}

/* The hooks on parameters, if the last step had none. */
static int set_hooks(const Likeness *l) {
    PyObject *unhooked = l->each[UNHOOKED];
    if (PyList_Size(unhooked) == 0) return DONE;
    PyObject *left = those_left(unhooked, l->each[KEY_OF_HOOKS]);
    int found = left == NULL || PyList_SetSlice(unhooked, 0, PyList_Size(unhooked), left) || PyList_Size(left) ? SLOW : DONE;
    Py_XDECREF(left);
    return found;
}

/* ---------------------------------------------------------------- it begins */

static int forget_last(const Likeness *l) {
    Sights *s = (Sights *)l->once[SIGHTS];
    CallHooks *h = (CallHooks *)l->once[CALLS];
    PyDict_Clear(s->seen);
    PyDict_Clear(l->once[SEEN_NAMED]);
    PyDict_Clear(l->once[FOUND_LOSSES]);
    PyDict_Clear(l->once[NAMED_TENSORS]);
    clear_table((Table *)s->table);
    return PyObject_SetAttr(l->once[NAMES], asked.is_fresh, Py_False) || PySet_Clear(s->hooked) || PyList_SetSlice(h->entered, 0, PyList_Size(h->entered), NULL);
}

/* DONE where the step of this number begins here; SLOW where Python has to begin it. */
static int begin_alike(Likeness *l, int64_t step) {
    int is_here = l->left > 0 && is_as_expected(l) && set_hooks(l) == DONE && !forget_last(l);
    PyErr_Clear();
    Py_CLEAR(l->stepping);
    l->depth = 0;
    l->left = is_here ? l->left - 1 : 0;
    if (!is_here) return SLOW;
    l->begun++;
    Sights *s = (Sights *)l->once[SIGHTS];
    CallHooks *h = (CallHooks *)l->once[CALLS];
    s->step = step;
    s->is_open = s->is_native = s->is_plain = s->is_quick = 1;
    s->has_backward = 0;
    s->iteration = 0;
    s->recording_secs = h->hooks_secs = 0.0;
    h->round++;
    h->rounds_since = 0;
    h->is_quick = 1;
    l->is_under_way = 1;
    l->is_given_up = 0;
    return DONE;
}

/* ---------------------------------------------------------------- its loss */

/* As NamedTensors has it: (a reference, (fingerprint, version), site). */
static PyObject *known_loss(const Sight *sight) {
    PyObject *reference = PyWeakref_NewRef(sight->tensor, NULL);
    return reference ? Py_BuildValue("(N(KL)i)", reference, (unsigned long long)sight->digest, (long long)sight->version, sight->site) : NULL;
}

static int put_under(PyObject *dict, PyObject *key, PyObject *value) {
    int bad = key == NULL || value == NULL || PyDict_SetItem(dict, key, value);
    Py_XDECREF(key);
    Py_XDECREF(value);
    return bad;
}

static int remember_loss(const Likeness *l, const Sight *sight) {
    int needs = is_true(sight->tensor, asked.requires_grad);
    if (needs < 0 || (needs && put_under(l->once[FOUND_LOSSES], PyLong_FromVoidPtr(sight->tensor), known_loss(sight)))) return FAILED;
    Py_INCREF(Py_None);
    return put_under(l->once[SEEN_NAMED], Py_BuildValue("(ii)", sight->site, 0), Py_None) ? FAILED : DONE;
}

/* The first loss of a step in which nothing was named; its site is known from others. */
static int see_loss_alike(Likeness *l, PyObject *tensor) {
    Sights *s = (Sights *)l->once[SIGHTS];
    Sight sight;
    if (!l->is_under_way || !s->is_open || !s->is_quick || s->iteration || l->loss_site < 0) return SLOW;
    if (PyDict_Size(l->once[FOUND_LOSSES]) || PyDict_Size(l->once[NAMED_TENSORS]) || PyDict_Size(l->once[SEEN_NAMED])) return SLOW;
    if (prepare_sight(&sight, tensor)) return SLOW;
    double started = seconds();
    sight.site = l->loss_site;
    sight.units = NO_UNIT_DIM;
    int found = see(s, &sight) || remember_loss(l, &sight) ? FAILED : DONE;
    s->recording_secs += seconds() - started;
    return found;
}

/* ---------------------------------------------------------------- its update */

static int has_closure(PyObject *arguments, PyObject *keywords) {
    return !PyTuple_Check(arguments) || PyTuple_Size(arguments) > 1 || !PyDict_Check(keywords) || PyDict_Size(keywords);
}

/* Whether the parameters of one group are the next of those that are known; `at` is how many came before. */
static int is_next_group(PyObject *group, PyObject *identities, Py_ssize_t *at) {
    PyObject *parameters = PyDict_Check(group) ? PyDict_GetItemString(group, "params") : NULL;
    if (parameters == NULL || !PyList_Check(parameters)) return 0;
    for (Py_ssize_t i = 0; i < PyList_Size(parameters); i++, ++*at) {
        PyObject *known = *at < PyList_Size(identities) ? PyList_GetItem(identities, *at) : NULL;
        if (known == NULL || PyLong_AsVoidPtr(known) != PyList_GetItem(parameters, i)) return 0;
    }
    return 1;
}

static int trains_the_same(const Likeness *l, PyObject *optimizer) {
    PyObject *groups = PyObject_GetAttr(optimizer, asked.param_groups), *identities = l->each[IDENTITIES];
    int is_same = groups && PyList_Check(groups);
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; is_same && i < PyList_Size(groups); i++) is_same = is_next_group(PyList_GetItem(groups, i), identities, &at);
    Py_XDECREF(groups);
    return is_same && at == PyList_Size(identities);
}

static int set_number(PyObject *object, PyObject *name, long long number) {
    PyObject *value = PyLong_FromLongLong(number);
    int bad = value == NULL || PyObject_SetAttr(object, name, value);
    Py_XDECREF(value);
    return bad;
}

/* What Python has to know of an update under way, should it not end as it has begun. */
static int note_update(Likeness *l, int passes, PyObject *pairs) {
    PyObject *capture = l->each[CAPTURE];
    keep(&l->stepping, pairs);
    l->passes = passes;
    l->depth = 1;
    return PyDict_SetItem(l->once[UPDATES], capture, pairs) || set_number(capture, asked.depth, 1) ||
           set_number(capture, asked.passes, passes) || set_number(capture, asked.last_step, ((Sights *)l->once[SIGHTS])->step);
}

static int note_update_end(const Likeness *l) {
    PyObject *capture = l->each[CAPTURE];
    return PyDict_DelItem(l->once[UPDATES], capture) || set_number(capture, asked.depth, 0);
}

static int begin_update_alike(Likeness *l, int passes, PyObject *pairs) {
    Sights *s = (Sights *)l->once[SIGHTS];
    double started = seconds();
    s->update_iteration = 0;
    PyObject *answer = sights_before_update((PyObject *)s, pairs);
    int found = answer == NULL ? FAILED : is_yes(answer, Py_True) ? DONE : SLOW;
    if (found == DONE && note_update(l, passes, pairs)) found = FAILED;
    s->recording_secs += seconds() - started;
    return found;
}

/* DONE where parameters and gradients were read here, or where an outer update has done so. */
static int before_update_alike(Likeness *l, int passes, PyObject *optimizer, PyObject *arguments, PyObject *keywords) {
    if (l->stepping && l->passes == passes) {
        l->depth++;
        return DONE;
    }
    int is_alike = l->is_under_way && !l->is_given_up && l->stepping == NULL && ((Sights *)l->once[SIGHTS])->is_open &&
                   !has_closure(arguments, keywords) && trains_the_same(l, optimizer);
    PyObject *pairs = is_alike ? pairs_of_held(NULL, l->each[TRAINED]) : NULL;
    int found = pairs ? begin_update_alike(l, passes, pairs) : SLOW;
    Py_XDECREF(pairs);
    return found;
}

/* An update is Python's: so are those after it in this step. One that was under way was ended by an exception. */
static void give_up_updates(Likeness *l) {
    Py_CLEAR(l->stepping);
    l->left = 0;
    l->is_given_up = 1;
}

/* DONE where an inner update has ended, or what this one did was read here: then `*is_over`. */
static int after_update_alike(Likeness *l, PyObject *optimizer, int *is_over) {
    Sights *s = (Sights *)l->once[SIGHTS];
    if (l->stepping == NULL) return SLOW;
    if (--l->depth > 0) return DONE;
    double started = seconds();
    PyObject *pairs = l->stepping, *states = l->has_states ? PyObject_GetAttr(optimizer, asked.state) : Py_None, *answer = NULL;
    l->stepping = NULL;
    PyObject *given[] = {pairs, states};
    if (states) answer = sights_after_update((PyObject *)s, given, 2);
    if (l->has_states) Py_XDECREF(states);
    Py_DECREF(pairs);
    if (answer == Py_True && s->is_open && note_update_end(l)) Py_CLEAR(answer); /* it may have ended the run */
    s->recording_secs += seconds() - started;
    *is_over = answer == Py_True;
    return answer == NULL ? FAILED : is_yes(answer, Py_True) ? DONE : SLOW;
}

/* ---------------------------------------------------------------- as Python sees it */

/* expect(held, sizes, unhooked, key, identities, trained, rules, generation, capture, loss_site, has_states, left) */
static PyObject *likeness_expect(PyObject *self, PyObject *arguments) {
    Likeness *l = (Likeness *)self;
    PyObject *given[EACH];
    int loss_site, has_states;
    long long left;
    if (!PyArg_ParseTuple(arguments, "O!O!O!OO!O!OOOipL", &PyList_Type, &given[HELD], &PyList_Type, &given[SIZES], &PyList_Type,
                          &given[UNHOOKED], &given[KEY_OF_HOOKS], &PyList_Type, &given[IDENTITIES], &PyList_Type, &given[TRAINED],
                          &given[RULES], &given[GENERATION], &given[CAPTURE], &loss_site, &has_states, &left))
        return NULL;
    for (int i = 0; i < EACH; i++) keep(&l->each[i], given[i]);
    l->loss_site = loss_site;
    l->has_states = (char)has_states;
    l->left = left;
    Py_RETURN_NONE;
}

/* A step begins in Python: those after it may be other than those before. */
static PyObject *likeness_end(PyObject *self, PyObject *unused) {
    Likeness *l = (Likeness *)self;
    (void)unused;
    l->left = l->is_under_way = l->depth = 0;
    Py_CLEAR(l->stepping);
    Py_RETURN_NONE;
}

/* Whether the step that ends began here. */
static PyObject *likeness_take_end(PyObject *self, PyObject *unused) {
    int was_under_way = ((Likeness *)self)->is_under_way;
    (void)unused;
    ((Likeness *)self)->is_under_way = 0;
    return PyBool_FromLong(was_under_way);
}

static PyObject *likeness_take_begun(PyObject *self, PyObject *unused) {
    Likeness *l = (Likeness *)self;
    long long begun = l->begun;
    (void)unused;
    l->begun = 0;
    return PyLong_FromLongLong(begun);
}

static int likeness_traverse(PyObject *self, visitproc visit, void *arg) {
    Likeness *l = (Likeness *)self;
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < ONCE; i++) Py_VISIT(l->once[i]);
    for (int i = 0; i < EACH; i++) Py_VISIT(l->each[i]);
    Py_VISIT(l->stepping);
    return 0;
}

static int likeness_clear(PyObject *self) {
    Likeness *l = (Likeness *)self;
    l->left = l->is_under_way = 0;
    for (int i = 0; i < ONCE; i++) Py_CLEAR(l->once[i]);
    for (int i = 0; i < EACH; i++) Py_CLEAR(l->each[i]);
    Py_CLEAR(l->stepping);
    return 0;
}

static void likeness_dealloc(PyObject *self) { release_object(self, likeness_clear); }

/* Likeness(calls, sights, names, seen_named, found_losses, named_tensors, stranded, loaded, updates) */
static PyObject *likeness_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *given[ONCE];
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "O!O!OO!O!O!OO!O!", hooks_type, &given[CALLS], sights_type, &given[SIGHTS], &given[NAMES], &PyDict_Type,
                          &given[SEEN_NAMED], &PyDict_Type, &given[FOUND_LOSSES], &PyDict_Type, &given[NAMED_TENSORS], &given[STRANDED],
                          &PyDict_Type, &given[LOADED], &PyDict_Type, &given[UPDATES]))
        return NULL;
    if (compiler_rules == NULL) compiler_rules = PyUnicode_InternFromString("torch._dynamo.trace_rules");
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Likeness *l = compiler_rules ? (Likeness *)allocate(type, 0) : NULL;
    for (int i = 0; l && i < ONCE; i++) {
        Py_INCREF(given[i]);
        l->once[i] = given[i];
    }
    return (PyObject *)l;
}

static PyMethodDef likeness_methods[] = {
    {"expect", likeness_expect, METH_VARARGS, "The next steps are like the last one, as long as what is given is so."},
    {"end", likeness_end, METH_NOARGS, "A step begins in Python: those after it may be other than those before."},
    {"take_end", likeness_take_end, METH_NOARGS, "A step ends; whether it began here."},
    {"take_begun", likeness_take_begun, METH_NOARGS, "How many steps have begun here since that was last asked."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef likeness_members[] = {
    {"left", T_LONGLONG, offsetof(Likeness, left), 0, "How many steps may yet begin here, if they are as expected."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot likeness_slots[] = {
    {Py_tp_doc, "What is the same in a captured step as in the one before."},
    {Py_tp_new, likeness_new},
    {Py_tp_methods, likeness_methods},
    {Py_tp_members, likeness_members},
    {Py_tp_traverse, likeness_traverse},
    {Py_tp_clear, likeness_clear},
    {Py_tp_dealloc, likeness_dealloc},
    {0, NULL},
};
static PyType_Spec likeness_spec = {"backlight.reduce._kernel.Likeness", sizeof(Likeness), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, likeness_slots};

#endif
