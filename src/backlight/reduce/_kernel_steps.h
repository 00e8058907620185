/* What a course knows of the step under way, and the rows of steps and scalars that wait in it. */
#ifndef BACKLIGHT_KERNEL_STEPS_H
#define BACKLIGHT_KERNEL_STEPS_H

#include <Python.h>
#include <math.h>
#include <structmember.h>
#include <time.h>

#include "_kernel_alike.h"
#include "_kernel_records.h"

enum { WINDOW = 64 }; /* as SpikeDetector in blackbox.py */
static const double FLUSH_SECS = 0.2;

typedef struct {
    int64_t step;
    int32_t iterations;
    double started_at, duration_secs, recording_secs, loss, learning_rate;
    int is_recorded, has_loss, has_rate;
} PassedStep;

typedef struct {
    int64_t step;
    PyObject *name; /* which the course knows, and keeps */
    double value, logged_at;
} LoggedScalar;

/* What a course is made with: functions in Python that do the same for anything, and where things are. */
enum {
    ON_FORWARD, ON_LOSS, SEE_LOSS, BEFORE_UPDATE, AFTER_UPDATE, UPDATED, PASSED, SEND, /* functions in Python */
    HOOKS, KEY,                  /* torch's hooks before a forward pass, and the course's place among them */
    MODELS, APART, FLAGS,        /* weak references; the threads that are apart; what torch.compiler knows */
    GRAD_ENABLED, GRAPH_TASK, TRACING, MODES, /* torch's functions that tell where one is */
    PERF, NOW,                   /* clocks */
    ROW, LOSSES,                   /* a row of `steps` to fill in, and the losses that were logged */
    GIVEN
};
static const char *const GIVEN_NAMES[GIVEN] = {
    "on_forward", "on_loss", "see_loss", "before_update", "after_update", "updated", "passed", "send", "hooks", "key", "models", "apart", "flags",
    "is_grad_enabled", "graph_task", "tracing_state", "function_modes", "perf", "now", "row", "losses"};

/* What a captured step that is like the last one is ended by: what must be as it was, and where it is written. */
enum {
    ENTERED, IN_MODES,                   /* its calls of modules; references to modules, and whether they train */
    LEAF_HOOKS, NEW_SITES, OTHER_ROWS,   /* lists that must be empty */
    QUANTITIES, BACKWARDS, GRAPH, REASON, /* texts for its rows */
    WITH_GRADIENTS,                      /* parameters that are to be hooked before another one */
    STATS_SINK, STEPS_SINK, SCALARS_SINK, /* where its rows go; the last may be None */
    ENDING
};

typedef struct {
    PyObject_HEAD
    long long step, leased_steps, passed_steps, ended_steps, taken_scalars, observations;
    double loss, started, started_at, recording_secs, sent_at, leased_secs, writing_secs, written_secs;
    int iterations, passes, losses, loss_iteration;
    char is_open, is_plain, is_captured, is_over, must_send, sees_loss, has_loss, is_window_known, is_window_finite;
    char ends_alike, is_writing; /* whether captured steps may be ended here; rows are being written */
    int window_length, window_next;
    PyObject *reason;           /* why the step is captured, or None */
    PyObject *root, *optimizer; /* weak references, or None */
    PyObject *likeness;         /* of captured steps, or NULL */
    PyObject *given[GIVEN], *hook, *names, *ending[ENDING];
    long long gap; /* how many steps that are not captured follow one that is */
    Context context;
    Room room;
    PassedStep *steps; /* those that Python has yet to hear of, of which the first are written */
    LoggedScalar *scalars;
    int64_t steps_length, steps_capacity, steps_written, scalars_length, scalars_capacity, scalars_written;
    double window[WINDOW];
} Course;
static PyTypeObject *course_type, *likeness_type;

static struct {
    PyObject *compiled_call, *compiling, *param_groups, *lr, *loss;
    PyObject *step, *started_at, *duration_secs, *recording_secs, *learning_rate, *name, *value, *logged_at;
    PyObject *recorded, *reason, *graph, *training;
} words;

static int make_words(void) {
    struct {
        PyObject **word;
        const char *text;
    } all[] = {{&words.compiled_call, "_compiled_call_impl"}, {&words.compiling, "_is_compiling_flag"},
               {&words.param_groups, "param_groups"}, {&words.lr, "lr"}, {&words.loss, "loss"}, {&words.step, "step"},
               {&words.started_at, "started_at"}, {&words.duration_secs, "duration_secs"},
               {&words.recording_secs, "recording_secs"}, {&words.learning_rate, "learning_rate"}, {&words.name, "name"},
               {&words.value, "value"}, {&words.logged_at, "logged_at"}, {&words.recorded, "recorded"},
               {&words.reason, "reason"}, {&words.graph, "graph"}, {&words.training, "training"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (*all[i].word == NULL && (*all[i].word = PyUnicode_InternFromString(all[i].text)) == NULL) return -1;
    return 0;
}

/* ---------------------------------------------------------------- what is asked at each step */

/* The time by the clock that Python's function reads, too: a step may begin here and end there. */
static double clock_secs(const Course *course, int which) {
#ifdef __linux__
    struct timespec now;
    clock_gettime(which == PERF ? CLOCK_MONOTONIC : CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
#endif
    PyObject *answer = PyObject_CallNoArgs(course->given[which]);
    double secs = answer ? PyFloat_AsDouble(answer) : 0.0;
    Py_XDECREF(answer);
    PyErr_Clear();
    return secs;
}

/* Whether a function of torch without arguments answers with this object. */
static int answers(const Course *course, int which, PyObject *expected) {
    PyObject *answer = PyObject_CallNoArgs(course->given[which]);
    int is_expected = answer == expected;
    Py_XDECREF(answer);
    PyErr_Clear();
    return is_expected;
}

static int answers_number(const Course *course, int which, long expected) {
    PyObject *answer = PyObject_CallNoArgs(course->given[which]);
    int is_expected = answer && PyLong_AsLong(answer) == expected;
    Py_XDECREF(answer);
    PyErr_Clear();
    return is_expected;
}

static PyObject *referent(PyObject *reference) {
    return PyWeakref_CheckRef(reference) ? PyWeakref_GetObject(reference) : Py_None;
}

/* A tensor of one number, read where it lies: what `item()` gives, without asking a dispatcher. */
static int read_number(const Course *course, PyObject *tensor, double *number) {
    DLTensor seen;
    if ((PyObject *)Py_TYPE(tensor) != torch.tensor || !torch.describe || !answers_number(course, MODES, 0)) return 0;
    if (torch.describe(tensor, &seen)) {
        PyErr_Clear();
        return 0;
    }
    if (seen.device.device_type != DL_CPU || !seen.data) return 0;
    for (int d = 0; d < seen.ndim; d++)
        if (seen.shape[d] != 1) return 0;
    const char *data = (const char *)seen.data + seen.byte_offset;
    float narrow;
    switch (dtype_of(seen.dtype)) {
    case FLOAT32: memcpy(&narrow, data, 4); *number = narrow; break;
    case FLOAT64: memcpy(number, data, 8); break;
    default: return 0;
    }
    int found = check_neg(tensor);
    PyErr_Clear();
    return found == READ;
}

/* A float, an int or such a tensor. */
static int read_value(const Course *course, PyObject *value, double *number) {
    if (PyFloat_CheckExact(value)) *number = PyFloat_AsDouble(value);
    else if (PyLong_CheckExact(value)) *number = PyLong_AsDouble(value);
    else return read_number(course, value, number);
    return !PyErr_Occurred();
}

/* The learning rate of the first group: 1 if it can be read here, 0 if there is none, -1 if Python must look. */
static int read_rate(const Course *course, PyObject *optimizer, double *rate) {
    PyObject *groups = PyObject_GetAttr(optimizer, words.param_groups);
    PyObject *group = groups && PyList_Check(groups) && PyList_Size(groups) ? PyList_GetItem(groups, 0) : NULL;
    int found = -1;
    if (group && PyDict_CheckExact(group)) {
        PyObject *value = PyDict_GetItemWithError(group, words.lr);
        if (value == NULL || value == Py_None) found = 0;
        else if (read_value(course, value, rate)) found = 1;
    }
    Py_XDECREF(groups);
    PyErr_Clear();
    return found;
}

static int is_any_compiled(const Course *course) {
    PyObject *models = course->given[MODELS];
    for (Py_ssize_t i = 0; i < PyTuple_Size(models); i++) {
        PyObject *model = referent(PyTuple_GetItem(models, i));
        if (model == Py_None) continue;
        PyObject *call = PyObject_GetAttr(model, words.compiled_call);
        int is_compiled = call != Py_None;
        Py_XDECREF(call);
        PyErr_Clear();
        if (is_compiled) return 1;
    }
    return 0;
}

static int is_apart_or_traced(const Course *course) {
    return PyDict_Size(course->given[APART]) != 0 ||
           PyDict_GetItemWithError(course->given[FLAGS], words.compiling) != Py_False ||
           !answers(course, TRACING, Py_None);
}

/* ---------------------------------------------------------------- rows that wait */

static int has_room(void **items, int64_t length, int64_t *capacity, int64_t more, size_t size) {
    if (length + more <= *capacity) return 1;
    int64_t wanted = *capacity * 2 + 64 + more;
    void *larger = realloc(*items, (size_t)wanted * size);
    if (larger == NULL) return 0;
    *items = larger;
    *capacity = wanted;
    return 1;
}

static int has_room_for_step(Course *c) {
    return has_room((void **)&c->steps, c->steps_length, &c->steps_capacity, 1, sizeof *c->steps);
}

static int has_room_for_scalars(Course *c, int64_t more) {
    return has_room((void **)&c->scalars, c->scalars_length, &c->scalars_capacity, more, sizeof *c->scalars);
}

/* Puts a number under a name, and takes the reference; NULL is an error that was met before. */
static int put(PyObject *row, PyObject *name, PyObject *value) {
    int bad = value == NULL || PyDict_SetItem(row, name, value);
    Py_XDECREF(value);
    return bad;
}

static PyObject *float_or_none(double number, int is_there) {
    if (is_there) return PyFloat_FromDouble(number);
    Py_INCREF(Py_None);
    return Py_None;
}

/* What is said of a captured step besides. */
static int put_captured(const Course *course, PyObject *row) {
    return PyDict_SetItem(row, words.recorded, Py_True) || PyDict_SetItem(row, words.reason, course->ending[REASON]) ||
           PyDict_SetItem(row, words.graph, course->ending[GRAPH]);
}

static PyObject *step_row(const Course *course, const PassedStep *passed) {
    PyObject *row = PyDict_Copy(course->given[ROW]);
    if (row && (put(row, words.step, PyLong_FromLongLong(passed->step)) ||
                put(row, words.started_at, PyFloat_FromDouble(passed->started_at)) ||
                put(row, words.duration_secs, PyFloat_FromDouble(passed->duration_secs)) ||
                put(row, words.recording_secs, PyFloat_FromDouble(passed->recording_secs)) ||
                put(row, words.loss, float_or_none(passed->loss, passed->has_loss)) ||
                put(row, words.learning_rate, float_or_none(passed->learning_rate, passed->has_rate)) ||
                (passed->is_recorded && put_captured(course, row))))
        Py_CLEAR(row);
    return row;
}

static PyObject *scalar_row(const LoggedScalar *logged) {
    PyObject *row = PyDict_New();
    if (row && (put(row, words.step, PyLong_FromLongLong(logged->step)) || PyDict_SetItem(row, words.name, logged->name) ||
                put(row, words.value, PyFloat_FromDouble(logged->value)) ||
                put(row, words.logged_at, PyFloat_FromDouble(logged->logged_at))))
        Py_CLEAR(row);
    return row;
}

/* Of a step that is written: what it took, and what of that recording did. */
static PyObject *written_step(const PassedStep *passed) {
    return Py_BuildValue("ddO", passed->duration_secs, passed->recording_secs, passed->is_recorded ? Py_True : Py_False);
}

static PyObject *written_scalar(const LoggedScalar *logged) { return Py_BuildValue("Od", logged->name, logged->value); }

/* Takes the reference; NULL is an error that was met before. */
static int append_new(PyObject *list, PyObject *item) {
    int bad = list == NULL || item == NULL || PyList_Append(list, item);
    Py_XDECREF(item);
    return bad;
}

/* Lists are made of what was taken off before: making them may run a finalizer, which may log. While rows are being
 * written, another thread gets none. */
static PyObject *course_take_steps(PyObject *self, PyObject *unused) {
    (void)unused;
    Course *course = (Course *)self;
    if (course->is_writing) return Py_BuildValue("([][])");
    PassedStep *steps = course->steps;
    int64_t length = course->steps_length, written = course->steps_written;
    course->steps = NULL;
    course->steps_length = course->steps_capacity = course->steps_written = 0;
    PyObject *known = PyList_New(0), *rows = PyList_New(0);
    for (int64_t i = 0; rows && i < length; i++)
        if (i < written ? append_new(known, written_step(&steps[i])) : append_new(rows, step_row(course, &steps[i]))) Py_CLEAR(rows);
    free(steps);
    return Py_BuildValue("(NN)", known, rows);
}

static PyObject *course_take_scalars(PyObject *self, PyObject *unused) {
    (void)unused;
    Course *course = (Course *)self;
    if (course->is_writing) return Py_BuildValue("([][])");
    LoggedScalar *scalars = course->scalars;
    int64_t length = course->scalars_length, written = course->scalars_written;
    course->scalars = NULL;
    course->scalars_length = course->scalars_capacity = course->scalars_written = 0;
    PyObject *known = PyList_New(0), *rows = PyList_New(0);
    for (int64_t i = 0; rows && i < length; i++)
        if (i < written ? append_new(known, written_scalar(&scalars[i])) : append_new(rows, scalar_row(&scalars[i]))) Py_CLEAR(rows);
    free(scalars);
    return Py_BuildValue("(NN)", known, rows);
}

/* Writes what waits, if it must or has waited long enough; -1 with an exception set. */
static int send_if_due(const Course *course) {
    if (course->is_writing) return 0;
    if (!course->must_send && clock_secs(course, PERF) - course->sent_at <= FLUSH_SECS) return 0;
    PyObject *answer = PyObject_CallNoArgs(course->given[SEND]);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

#endif
