/* Captured steps that are like the last one are ended here, written, and the next one is waited for.
 *
 * What Python does at the end of such a step only finds out that nothing unusual has happened in it. Before the step it
 * says so to the course, with what must be as it was; it takes that back as soon as it has anything to write itself, so that
 * nothing overtakes anything. What was written here it hears of later, of many steps at a time. */
#ifndef BACKLIGHT_KERNEL_ENDING_H
#define BACKLIGHT_KERNEL_ENDING_H

#include "_kernel_steps.h"

enum { MOST_UNHEARD = 256 /* steps that Python has yet to hear of */ };
static const double SLOW_SECS = 0.1; /* as in journal.py */

/* ---------------------------------------------------------------- steps and scalars as rows */

static Name name_from(PyObject *text) {
    Py_ssize_t size = 0;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &size);
    return utf8 ? (Name){utf8, size} : (Name){"", 0};
}

static Name kind_of_step(const void *record, const void *context) {
    (void)record;
    (void)context;
    return (Name){"train", 5};
}

static Name captured_text(const void *record, const void *context, int which) {
    return ((const PassedStep *)record)->is_recorded ? name_from(((const Course *)context)->ending[which]) : (Name){"", 0};
}

static Name reason_of_step(const void *record, const void *context) { return captured_text(record, context, REASON); }

static Name graph_of_step(const void *record, const void *context) { return captured_text(record, context, GRAPH); }

static Name name_of_scalar(const void *record, const void *context) {
    (void)context;
    return name_from(((const LoggedScalar *)record)->name);
}

static const RecordColumn STEP_COLUMNS[] = {
    {"step", WHOLE, offsetof(PassedStep, step), 0, NULL},
    {"kind", TEXT, 0, 0, kind_of_step},
    {"recorded", FLAG, offsetof(PassedStep, is_recorded), 0, NULL},
    {"reason", TEXT, 0, 0, reason_of_step},
    {"iterations", SHORT_WHOLE, offsetof(PassedStep, iterations), 0, NULL},
    {"batch_size", MISSING, 0, 0, NULL},
    {"graph", TEXT, 0, 0, graph_of_step},
    {"started_at", REAL, offsetof(PassedStep, started_at), 0, NULL},
    {"duration_secs", REAL, offsetof(PassedStep, duration_secs), 0, NULL},
    {"recording_secs", REAL, offsetof(PassedStep, recording_secs), 0, NULL},
    {"loss", REAL, offsetof(PassedStep, loss), offsetof(PassedStep, has_loss), NULL},
    {"learning_rate", REAL, offsetof(PassedStep, learning_rate), offsetof(PassedStep, has_rate), NULL},
};
static const RecordColumn SCALAR_COLUMNS[] = {
    {"step", WHOLE, offsetof(LoggedScalar, step), 0, NULL},
    {"name", TEXT, 0, 0, name_of_scalar},
    {"value", REAL, offsetof(LoggedScalar, value), 0, NULL},
    {"logged_at", REAL, offsetof(LoggedScalar, logged_at), 0, NULL},
};
enum { STEP_WIDTH = sizeof STEP_COLUMNS / sizeof *STEP_COLUMNS, SCALAR_WIDTH = sizeof SCALAR_COLUMNS / sizeof *SCALAR_COLUMNS };

#ifdef HAS_WRITEV
/* ---------------------------------------------------------------- what is written */

static int is_sink_ready(const Course *course, int which) {
    PyObject *sink = course->ending[which];
    return sink && Py_TYPE(sink) == sink_type && is_ready((Sink *)sink);
}

static int write_rows(Course *course, int which, int64_t rows, int (*fill)(Packing *, const void *), const void *from) {
    course->is_writing = 1;
    int failed = append_filled((Sink *)course->ending[which], &course->room, rows, fill, from);
    course->is_writing = 0;
    return failed;
}

static int write_stats(Course *course) {
    const Rows *rows = &((Table *)((Sights *)((Likeness *)course->likeness)->once[SIGHTS])->table)->rows;
    StepRows from = {rows, &course->context};
    course->context.step = course->step;
    if (write_rows(course, STATS_SINK, rows->length, fill_step, &from)) return -1;
    course->observations += rows->length;
    return 0;
}

/* Those that are not written yet; how many there are when it begins, for another thread may log meanwhile. */
static int write_steps(Course *course) {
    int64_t length = course->steps_length, first = course->steps_written;
    Records from = {STEP_COLUMNS, STEP_WIDTH, (const char *)(course->steps + first), sizeof *course->steps, length - first, course};
    if (length == first) return 0;
    if (!is_sink_ready(course, STEPS_SINK) || write_rows(course, STEPS_SINK, from.length, fill_records, &from)) return -1;
    course->steps_written = length;
    return 0;
}

static int write_scalars(Course *course) {
    int64_t length = course->scalars_length, first = course->scalars_written;
    Records from = {SCALAR_COLUMNS, SCALAR_WIDTH, (const char *)(course->scalars + first), sizeof *course->scalars, length - first, course};
    if (length == first) return 0;
    if (!is_sink_ready(course, SCALARS_SINK) || write_rows(course, SCALARS_SINK, from.length, fill_records, &from)) return -1;
    course->scalars_written = length;
    return 0;
}

/* What is logged after a captured step is written at once; 0 where Python has to do it. */
static int send_scalars(Course *course) {
    if (!course->must_send || !course->ends_alike || course->is_writing || write_scalars(course)) return 0;
    course->sent_at = clock_secs(course, PERF);
    return 1;
}

/* ---------------------------------------------------------------- is all as it was? */

static int is_empty(const Course *course, int which) { return PyList_Size(course->ending[which]) == 0; }

/* Whether each module that a reference leads to still trains, or does not. */
static int are_modes_same(const Course *course) {
    PyObject *pairs = course->ending[IN_MODES];
    int are_same = 1;
    for (Py_ssize_t i = 0; are_same && i < PyList_Size(pairs); i++) {
        PyObject *pair = PyList_GetItem(pairs, i), *module = referent(PyTuple_GetItem(pair, 0));
        are_same = module != Py_None && has(module, words.training, PyTuple_GetItem(pair, 1));
    }
    return are_same;
}

static int is_structure_same(const Course *course, const CallHooks *hooks) {
    PyObject *entered = hooks->entered, *expected = course->ending[ENTERED];
    Py_ssize_t length = PyList_Size(expected);
    int is_same = entered && PyList_Size(entered) == length;
    for (Py_ssize_t i = 0; is_same && i < length; i++)
        is_same = PyObject_RichCompareBool(PyList_GetItem(entered, i), PyList_GetItem(expected, i), Py_EQ) == 1;
    return is_same;
}

/* Of the step that ends, which began here. */
static int is_as_it_was(const Course *course) {
    const Likeness *l = (const Likeness *)course->likeness;
    const Sights *s = (const Sights *)l->once[SIGHTS];
    const Rows *rows = &((Table *)s->table)->rows;
    if (course->is_over || !course->is_open || course->passes < 1 || course->iterations || course->is_writing) return 0;
    if (!l->is_under_way || !s->is_open || !s->is_plain || course->steps_length >= MOST_UNHEARD) return 0;
    int is_same = is_empty(course, LEAF_HOOKS) && is_empty(course, NEW_SITES) && is_empty(course, OTHER_ROWS) &&
                  PyObject_Size(l->once[STRANDED]) == 0 && PyDict_Size(l->once[UPDATES]) == 0 && is_generation(l) &&
                  knows_compiler(l) && !is_any_compiled(course) && is_yes(sizes_differ(NULL, l->each[SIZES]), Py_False) &&
                  is_structure_same(course, (const CallHooks *)l->once[CALLS]) && are_modes_same(course);
    return is_same && rows->length && is_all_finite(rows) && !check_quantities(rows, &course->context);
}

/* ---------------------------------------------------------------- what comes next */

/* As ModuleCapture.attach and detach have it; Python does all of it again where this fails. */
static int attach_hooks(CallHooks *h) {
    h->round++;
    h->is_listening = 1;
    if (PyList_SetSlice(h->modules, 0, PyList_Size(h->modules), NULL) || PyList_SetSlice(h->calls, 0, PyList_Size(h->calls), NULL)) return -1;
    if (h->is_set) return 0;
    h->is_set = 1;
    for (Py_ssize_t i = 0; i < PyTuple_Size(h->places); i++) {
        PyObject *pair = PyTuple_GetItem(h->places, i);
        if (PyObject_SetItem(PyTuple_GetItem(pair, 0), (PyObject *)h, PyTuple_GetItem(pair, 1))) return -1;
    }
    return 0;
}

static int detach_hooks(CallHooks *h) {
    h->is_listening = 0;
    for (Py_ssize_t i = 0; h->is_set && i < PyTuple_Size(h->places); i++)
        if (PyObject_DelItem(PyTuple_GetItem(PyTuple_GetItem(h->places, i), 0), (PyObject *)h)) return -1;
    h->is_set = 0;
    return 0;
}

static int release_parameters(const Course *course, const Likeness *l) {
    PyObject *unhooked = l->each[UNHOOKED], *left = those_left(l->each[HELD], NULL);
    int is_done = left && PyList_Size(left) == 0 && !PyList_SetSlice(unhooked, 0, PyList_Size(unhooked), course->ending[WITH_GRADIENTS]);
    Py_XDECREF(left);
    return is_done ? 0 : -1;
}

/* The next step is captured; whether it is waited for now. */
static int wait_captured(Course *course) {
    const Likeness *l = (const Likeness *)course->likeness;
    if (!course->ends_alike || course->is_over || l == NULL || l->left < 1 || PyObject_Size(l->once[STRANDED]) || !knows_compiler(l)) return 0;
    if (attach_hooks((CallHooks *)l->once[CALLS])) {
        PyErr_Clear();
        return 0;
    }
    keep(&course->reason, course->ending[REASON]);
    course->is_captured = course->sees_loss = 1;
    course->is_plain = 0;
    return 1;
}

/* The next step after a captured one is not; whether it is waited for now. */
static int wait_passing(Course *course) {
    const Likeness *l = (const Likeness *)course->likeness;
    if (detach_hooks((CallHooks *)l->once[CALLS]) || release_parameters(course, l) ||
        PyObject_SetItem(course->given[HOOKS], course->given[KEY], course->hook)) {
        PyErr_Clear();
        return 0;
    }
    keep(&course->reason, Py_None);
    course->is_captured = course->sees_loss = 0;
    course->is_plain = 1;
    course->leased_steps = course->gap - 1;
    course->leased_secs = INFINITY;
    return 1;
}

/* ---------------------------------------------------------------- all of it */

static void forget_step(Likeness *l) {
    Sights *s = (Sights *)l->once[SIGHTS];
    clear_table((Table *)s->table);
    PyDict_Clear(s->seen);
    PyDict_Clear(l->once[SEEN_NAMED]);
    if (PySet_Clear(s->hooked)) PyErr_Clear();
}

static PassedStep captured_step(const Course *course, double started) {
    const Likeness *l = (const Likeness *)course->likeness;
    const Sights *s = (const Sights *)l->once[SIGHTS];
    double now = clock_secs(course, PERF), hooks_secs = ((const CallHooks *)l->once[CALLS])->hooks_secs;
    /* It is yet to be written, which takes about as long as the last one did. */
    return (PassedStep){.step = course->step, .iterations = 1, .is_recorded = 1, .started_at = course->started_at,
                        .duration_secs = now - course->started + course->writing_secs,
                        .recording_secs = s->recording_secs + hooks_secs + now - started + course->writing_secs,
                        .loss = course->loss, .has_loss = course->has_loss};
}

/* Whether scalars were logged inside of the step; others are written with what is logged after it. */
static int has_scalars_inside(const Course *course) {
    return course->scalars_length > course->scalars_written && course->scalars[course->scalars_length - 1].step == course->step;
}

/* DONE where the captured step under way was ended and written; SLOW where Python has to, and nothing was done. */
static int end_alike(Course *course, PyObject *optimizer) {
    double started = clock_secs(course, PERF);
    if (!course->ends_alike || !is_as_it_was(course) || !is_sink_ready(course, STATS_SINK) || !has_room_for_step(course)) return SLOW;
    Likeness *l = (Likeness *)course->likeness;
    PassedStep ended = captured_step(course, started);
    ended.has_rate = read_rate(course, optimizer, &ended.learning_rate);
    if (ended.has_rate < 0) return SLOW;
    double written_from = clock_secs(course, PERF);
    ((Sights *)l->once[SIGHTS])->is_open = 0; /* what other threads do meanwhile is not seen */
    if (write_stats(course)) {
        ((Sights *)l->once[SIGHTS])->is_open = 1;
        return SLOW;
    }
    course->steps[course->steps_length++] = ended;
    int failed = write_steps(course) || (has_scalars_inside(course) && write_scalars(course));
    double now = clock_secs(course, PERF);
    course->writing_secs = now - written_from;
    course->written_secs += course->writing_secs;
    if (failed || course->writing_secs > SLOW_SECS) course->ends_alike = 0;
    else if (course->scalars_length == course->scalars_written) course->sent_at = now;
    l->is_under_way = course->is_open = 0;
    course->must_send = 1;
    course->ended_steps++;
    forget_step(l);
    return DONE;
}

static int wait_for_next(Course *course) { return course->ends_alike && !course->is_over && (course->gap ? wait_passing(course) : wait_captured(course)); }

#else
static int send_scalars(Course *course) { return (void)course, 0; }
static int wait_captured(Course *course) { return (void)course, 0; }
static int end_alike(Course *course, PyObject *optimizer) { return (void)course, (void)optimizer, SLOW; }
static int wait_for_next(Course *course) { return (void)course, 0; }
#endif

/* ---------------------------------------------------------------- what Python says beforehand */

/* Whether what was given is of the kinds that are counted on here. */
static int is_ending_sound(PyObject *const *given) {
    static const int lists[] = {ENTERED, IN_MODES, LEAF_HOOKS, NEW_SITES, OTHER_ROWS, WITH_GRADIENTS};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (!PyList_Check(given[lists[i]])) return 0;
    for (Py_ssize_t i = 0; i < PyList_Size(given[IN_MODES]); i++) {
        PyObject *pair = PyList_GetItem(given[IN_MODES], i);
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) return 0;
    }
    return PyTuple_Check(given[QUANTITIES]) && PyTuple_Check(given[BACKWARDS]) && PyUnicode_Check(given[GRAPH]) && PyUnicode_Check(given[REASON]);
}

static void forget_context(Course *course) {
    free(course->context.quantities.names);
    free(course->context.backwards.names);
    course->context = (Context){.step = 0};
}

/* may_end(entered, in_modes, leaf_hooks, new_sites, other_rows, quantities, backwards, graph, reason, with_gradients,
 * stats, steps, scalars, gap) */
static PyObject *course_may_end(PyObject *self, PyObject *arguments) {
    Course *course = (Course *)self;
    PyObject *given[ENDING];
    long long gap;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOOOOOOOL", &given[ENTERED], &given[IN_MODES], &given[LEAF_HOOKS], &given[NEW_SITES], &given[OTHER_ROWS],
                          &given[QUANTITIES], &given[BACKWARDS], &given[GRAPH], &given[REASON], &given[WITH_GRADIENTS], &given[STATS_SINK],
                          &given[STEPS_SINK], &given[SCALARS_SINK], &gap))
        return NULL;
    if (course->likeness == NULL || gap < 0 || !is_ending_sound(given)) return refuse("may_end got what is of another kind");
    course->ends_alike = 0;
    for (int i = 0; i < ENDING; i++) keep(&course->ending[i], given[i]);
    forget_context(course);
    if (read_names(given[QUANTITIES], &course->context.quantities) || read_names(given[BACKWARDS], &course->context.backwards)) return NULL;
    course->gap = gap;
    course->ends_alike = 1;
    Py_RETURN_NONE;
}

#endif
