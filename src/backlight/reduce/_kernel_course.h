/* The course of steps, while nobody has to decide anything.
 *
 * In a real loop nearly every line of memory that Python touches between two operations has left the caches, so what a
 * step costs besides reading tensors is how much it touches. A course holds all that is known of the step under way in one
 * place, and its methods are the hooks themselves. Whatever is unusual goes to the functions in Python that it was made
 * with, which read and write the same state; the two may take turns from one call to the next. */
#ifndef BACKLIGHT_KERNEL_COURSE_H
#define BACKLIGHT_KERNEL_COURSE_H

#include "_kernel_ending.h"

enum { MOST_PASSES = 1024, MOST_LOGGED = 16, LEAST_LOSSES = 16 /* as SpikeDetector in blackbox.py */ };

/* ---------------------------------------------------------------- a step begins, has a loss, ends */

static void open_step(Course *course) {
    course->is_open = 1;
    course->must_send = course->has_loss = 0;
    course->step++;
    course->iterations = course->passes = course->losses = course->loss_iteration = 0;
    course->started = clock_secs(course, PERF);
    course->started_at = clock_secs(course, NOW);
}

static int is_unusual_beginning(const Course *course, PyObject *module) {
    return !course->is_plain || course->is_open || referent(course->root) != module ||
           referent(course->optimizer) == Py_None || is_apart_or_traced(course);
}

static PyObject *course_on_forward(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    Course *course = (Course *)self;
    if (given != 2 || course->hook == NULL) return refuse("on_forward takes module, args");
    if (answers(course, GRAD_ENABLED, Py_False)) Py_RETURN_NONE;
    if (is_unusual_beginning(course, arguments[0]) || PyObject_DelItem(course->given[HOOKS], course->given[KEY])) {
        PyErr_Clear();
        return PyObject_CallFunctionObjArgs(course->given[ON_FORWARD], arguments[0], arguments[1], NULL);
    }
    open_step(course);
    if (send_if_due(course)) return NULL;
    course->recording_secs = clock_secs(course, PERF) - course->started;
    Py_RETURN_NONE;
}

/* With a call that no other is around, in the thread that trains, outside of a backward pass and of tracers. */
static int begin_captured(PyObject *given) {
    if (given == NULL || Py_TYPE(given) != course_type) return SLOW;
    Course *course = (Course *)given;
    if (course->is_open || course->is_over || course->likeness == NULL || ((Likeness *)course->likeness)->left < 1) return SLOW;
    if (referent(course->optimizer) == Py_None || is_apart_or_traced(course) || !answers(course, GRAD_ENABLED, Py_True)) return SLOW;
    if (begin_alike((Likeness *)course->likeness, course->step + 1)) return SLOW;
    open_step(course);
    return send_if_due(course) ? FAILED : DONE;
}

static PyObject *see_captured_loss(Course *course, PyObject *tensor) {
    Likeness *likeness = (Likeness *)course->likeness;
    int found = likeness && course->passes == 1 ? see_loss_alike(likeness, tensor) : SLOW;
    if (found == SLOW && likeness && likeness->loss_site < 0) likeness->left = 0; /* Python learns it now */
    if (found == SLOW) {
        PyErr_Clear();
        return PyObject_CallFunctionObjArgs(course->given[SEE_LOSS], tensor, NULL);
    }
    course->losses = 1;
    return found == FAILED ? tell_fault(likeness->once[SIGHTS], "reading the loss") : nothing();
}

static PyObject *course_on_loss(PyObject *self, PyObject *tensor) {
    Course *course = (Course *)self;
    double loss;
    if (!course->is_open) Py_RETURN_NONE;
    if (!(course->is_plain || course->sees_loss) || course->passes + 1 >= MOST_PASSES ||
        !answers_number(course, GRAPH_TASK, -1) || !read_number(course, tensor, &loss))
        return PyObject_CallFunctionObjArgs(course->given[ON_LOSS], tensor, NULL);
    course->loss = loss;
    course->has_loss = 1;
    course->passes++;
    if (!course->is_plain) return see_captured_loss(course, tensor);
    Py_RETURN_NONE;
}

static PyObject *course_before_update(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    Course *course = (Course *)self;
    if (given != 3 || course->hook == NULL) return refuse("before_update takes optimizer, args, kwargs");
    int is_sole = course->is_open && referent(course->optimizer) == arguments[0];
    if (course->is_plain && is_sole) Py_RETURN_NONE;
    Likeness *likeness = (Likeness *)course->likeness;
    int is_tried = is_sole && likeness && course->iterations == 0;
    int found = is_tried ? before_update_alike(likeness, course->passes, arguments[0], arguments[1], arguments[2]) : SLOW;
    if (found == DONE) Py_RETURN_NONE;
    if (likeness) give_up_updates(likeness);
    if (found == SLOW) PyErr_Clear();
    if (found == FAILED) return tell_fault(likeness->once[SIGHTS], "reading parameters and their gradients");
    return PyObject_CallFunctionObjArgs(course->given[BEFORE_UPDATE], arguments[0], arguments[1], arguments[2], NULL);
}

/* Whether the step that ends is one of which nothing was captured. */
static int is_usual_end(const Course *course, PyObject *optimizer) {
    int has_trained = course->leased_steps > 0 || course->passes > 0; /* else it may have, in another thread */
    return course->is_plain && course->is_open && course->iterations == 0 && has_trained && course->passes < MOST_PASSES &&
           referent(course->optimizer) == optimizer && !is_any_compiled(course);
}

/* Ends a step, and waits for the next if that is known to be such a one too; 0 where Python has to, and nothing was done. */
static int end_step(Course *course, PyObject *optimizer) {
    double started = clock_secs(course, PERF), rate = 0.0, duration_secs = started - course->started;
    if (duration_secs >= course->leased_secs || !has_room_for_step(course)) return 0;
    int has_rate = read_rate(course, optimizer, &rate);
    if (has_rate < 0) return 0;
    if (course->leased_steps > 0 && PyObject_SetItem(course->given[HOOKS], course->given[KEY], course->hook)) return 0;
    PassedStep *passed = &course->steps[course->steps_length++];
    *passed = (PassedStep){.step = course->step, .iterations = 1, .started_at = course->started_at, .duration_secs = duration_secs,
                           .loss = course->loss, .has_loss = course->has_loss, .learning_rate = rate, .has_rate = has_rate};
    course->is_open = 0;
    if (course->leased_steps > 0) course->leased_steps--;
    course->leased_secs -= duration_secs;
    course->passed_steps++;
    passed->recording_secs = course->recording_secs + clock_secs(course, PERF) - started;
    return 1;
}

/* An update that was seen from its beginning. */
static PyObject *end_captured_update(Course *course, PyObject *const *arguments) {
    Likeness *likeness = (Likeness *)course->likeness;
    int is_over = 0, found = referent(course->optimizer) == arguments[0] ? after_update_alike(likeness, arguments[0], &is_over) : SLOW;
    if (found == FAILED) {
        PyObject *answer = tell_fault(likeness->once[SIGHTS], "reading the optimizer's state");
        if (answer == NULL) return NULL;
        Py_DECREF(answer);
        is_over = 1;
    }
    if (found == SLOW) {
        PyErr_Clear();
        return PyObject_CallFunctionObjArgs(course->given[AFTER_UPDATE], arguments[0], arguments[1], arguments[2], NULL);
    }
    if (!is_over) Py_RETURN_NONE;
    if (found == FAILED || end_alike(course, arguments[0]) == SLOW) {
        PyErr_Clear();
        return PyObject_CallNoArgs(course->given[UPDATED]);
    }
    return wait_for_next(course) ? nothing() : PyObject_CallNoArgs(course->given[PASSED]);
}

static PyObject *course_after_update(PyObject *self, PyObject *const *arguments, Py_ssize_t given) {
    Course *course = (Course *)self;
    if (given != 3 || course->hook == NULL) return refuse("after_update takes optimizer, args, kwargs");
    if (is_usual_end(course, arguments[0])) {
        int is_last = course->leased_steps < 1;
        if (end_step(course, arguments[0])) {
            if (is_last && !wait_captured(course)) return PyObject_CallNoArgs(course->given[PASSED]);
            Py_RETURN_NONE;
        }
    }
    PyErr_Clear();
    if (course->likeness && ((Likeness *)course->likeness)->stepping) return end_captured_update(course, arguments);
    return PyObject_CallFunctionObjArgs(course->given[AFTER_UPDATE], arguments[0], arguments[1], arguments[2], NULL);
}

/* ---------------------------------------------------------------- losses that are logged: is one a spike? */

static int compare_doubles(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median_of(double *values, int length) {
    qsort(values, (size_t)length, sizeof *values, compare_doubles);
    int half = length / 2;
    return length % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

static void see_loss(Course *course, double loss) {
    course->window[course->window_next] = loss;
    course->window_next = (course->window_next + 1) % WINDOW;
    if (course->window_length < WINDOW) course->window_length++;
}

/* The losses that Python has seen, after it has seen one that did not come by here. */
static void learn_window(Course *course) {
    PyObject *losses = PySequence_List(course->given[LOSSES]);
    Py_ssize_t length = losses ? PyList_Size(losses) : -1;
    course->window_length = course->window_next = 0;
    course->is_window_known = length >= 0 && length <= WINDOW;
    course->is_window_finite = 1;
    for (Py_ssize_t i = 0; course->is_window_known && i < length; i++) {
        double loss = PyFloat_AsDouble(PyList_GetItem(losses, i));
        course->is_window_finite &= isfinite(loss);
        see_loss(course, loss);
    }
    Py_XDECREF(losses);
    PyErr_Clear();
}

/* As SpikeDetector in blackbox.py says, for finite numbers; all others are for Python. */
static int may_be_spike(Course *course, double loss) {
    if (!course->is_window_known) learn_window(course);
    if (!course->is_window_known || !course->is_window_finite || !isfinite(loss)) return 1;
    int length = course->window_length;
    if (length < LEAST_LOSSES) return 0;
    double sorted[WINDOW], least = course->window[0];
    for (int i = 1; i < length; i++) least = course->window[i] < least ? course->window[i] : least;
    if (0 < loss && loss <= 2 * least) return 0;
    int large = 0; /* where most are at least half as large, the median is */
    for (int i = 0; i < length; i++) large += 2 * course->window[i] >= loss;
    if (0 < loss && large > length / 2) return 0;
    memcpy(sorted, course->window, (size_t)length * sizeof *sorted);
    double middle = median_of(sorted, length), size = fabs(middle);
    if (loss - middle <= (size > 1e-12 ? size : 1e-12)) return 0;
    for (int i = 0; i < length; i++) sorted[i] = fabs(course->window[i] - middle);
    return loss - middle > 10 * median_of(sorted, length);
}

/* ---------------------------------------------------------------- numbers that the user logs */

/* Reads all of them, or says with -1 that Python has to: nothing is taken then. */
static int read_scalars(Course *course, PyObject *scalars, PyObject **names, double *numbers) {
    PyObject *name, *value;
    Py_ssize_t at = 0;
    int length = 0;
    if (PyDict_Size(scalars) > MOST_LOGGED) return -1;
    while (PyDict_Next(scalars, &at, &name, &value)) {
        names[length] = PyDict_GetItemWithError(course->names, name);
        if (names[length] == NULL || !read_value(course, value, &numbers[length])) return -1;
        if (names[length] == words.loss && may_be_spike(course, numbers[length])) return -1;
        length++;
    }
    return length;
}

static PyObject *course_log(PyObject *self, PyObject *scalars) {
    Course *course = (Course *)self;
    PyObject *names[MOST_LOGGED];
    double numbers[MOST_LOGGED];
    if (course->is_over || !PyDict_CheckExact(scalars)) Py_RETURN_FALSE;
    int length = read_scalars(course, scalars, names, numbers);
    if (length < 0 || !has_room_for_scalars(course, length)) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    for (int i = 0; i < length; i++) {
        course->scalars[course->scalars_length++] = (LoggedScalar){
            .step = course->step > 0 ? course->step : 0, .name = names[i], .value = numbers[i], .logged_at = clock_secs(course, NOW)};
        if (names[i] == words.loss) see_loss(course, numbers[i]);
    }
    course->taken_scalars += length;
    if (!send_scalars(course) && send_if_due(course)) return NULL;
    Py_RETURN_TRUE;
}

/* What captured steps are alike in; it is not looked at again whether it is such. */
static PyObject *course_compare_by(PyObject *self, PyObject *likeness) {
    if (Py_TYPE(likeness) != likeness_type) return refuse("compare_by takes a Likeness");
    Py_INCREF(likeness);
    Py_XDECREF(((Course *)self)->likeness);
    ((Course *)self)->likeness = likeness;
    Py_RETURN_NONE;
}

/* A name that can be written as it is may be logged here from now on. Another loss was seen elsewhere. */
static PyObject *course_learn_name(PyObject *self, PyObject *name) {
    Course *course = (Course *)self;
    if (!PyUnicode_CheckExact(name) || course->names == NULL) return refuse("learn_name takes a text");
    PyObject *known = PyUnicode_Compare(name, words.loss) ? name : words.loss;
    if (known == words.loss) course->is_window_known = 0;
    if (PyDict_SetItem(course->names, known, known)) return NULL;
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- the type */

static PyObject *course_get_waiting(PyObject *self, void *unused) {
    (void)unused;
    const Course *course = (const Course *)self;
    return PyLong_FromLongLong(course->is_writing ? 0 : course->steps_length + course->scalars_length);
}

static PyObject *course_get_loss(PyObject *self, void *unused) {
    (void)unused;
    return float_or_none(((Course *)self)->loss, ((Course *)self)->has_loss);
}

static int course_set_loss(PyObject *self, PyObject *value, void *unused) {
    (void)unused;
    Course *course = (Course *)self;
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "the loss cannot be deleted");
        return -1;
    }
    course->has_loss = value != Py_None;
    course->loss = course->has_loss ? PyFloat_AsDouble(value) : 0.0;
    return PyErr_Occurred() ? -1 : 0;
}

static int course_traverse(PyObject *self, visitproc visit, void *arg) {
    Course *course = (Course *)self;
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < GIVEN; i++) Py_VISIT(course->given[i]);
    Py_VISIT(course->hook);
    Py_VISIT(course->names);
    Py_VISIT(course->root);
    Py_VISIT(course->optimizer);
    Py_VISIT(course->likeness);
    Py_VISIT(course->reason);
    for (int i = 0; i < ENDING; i++) Py_VISIT(course->ending[i]);
    return 0;
}

static int course_clear(PyObject *self) {
    Course *course = (Course *)self;
    course->is_plain = course->is_open = course->ends_alike = 0;
    course->is_over = 1;
    course->steps_length = course->scalars_length = course->steps_written = course->scalars_written = 0; /* whose names go */
    for (int i = 0; i < GIVEN; i++) Py_CLEAR(course->given[i]);
    Py_CLEAR(course->hook);
    Py_CLEAR(course->names);
    Py_CLEAR(course->root);
    Py_CLEAR(course->optimizer);
    Py_CLEAR(course->likeness);
    Py_CLEAR(course->reason);
    for (int i = 0; i < ENDING; i++) Py_CLEAR(course->ending[i]);
    forget_context(course); /* whose texts were theirs */
    return 0;
}

static void course_dealloc(PyObject *self) {
    Course *course = (Course *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    course_clear(self);
    free(course->steps);
    free(course->scalars);
    free(course->room.bytes);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *course_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    if (PyTuple_Size(arguments) || keywords == NULL) return refuse("Course takes keywords only");
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    PyObject *self = make_words() ? NULL : allocate(type, 0);
    if (self == NULL) return NULL;
    Course *course = (Course *)self;
    for (int i = 0; i < GIVEN; i++) {
        PyObject *given = PyDict_GetItemString(keywords, GIVEN_NAMES[i]);
        if (given == NULL) {
            PyErr_Format(PyExc_TypeError, "Course needs %s", GIVEN_NAMES[i]);
            Py_DECREF(self);
            return NULL;
        }
        Py_INCREF(given);
        course->given[i] = given;
    }
    Py_INCREF(Py_None);
    course->root = Py_None;
    Py_INCREF(Py_None);
    course->optimizer = Py_None;
    Py_INCREF(Py_None);
    course->reason = Py_None;
    course->names = PyDict_New();
    course->hook = PyObject_GetAttrString(self, "on_forward");
    if (!PyTuple_Check(course->given[MODELS]) || !PyDict_Check(course->given[APART]) ||
        !PyDict_Check(course->given[FLAGS]) || !PyDict_Check(course->given[ROW]))
        PyErr_SetString(PyExc_TypeError, "models must be a tuple; apart, flags and row must be dictionaries");
    if (PyErr_Occurred()) Py_CLEAR(self);
    return self;
}

static PyMemberDef course_members[] = {
    {"step", T_LONGLONG, offsetof(Course, step), 0, "The number of the step under way, or of the last one."},
    {"is_open", T_BOOL, offsetof(Course, is_open), 0, "Whether a step is under way."},
    {"is_plain", T_BOOL, offsetof(Course, is_plain), 0, "Whether it, or the next one, may be passed over here."},
    {"is_captured", T_BOOL, offsetof(Course, is_captured), 0, "Whether it, or the next one, is captured."},
    {"reason", T_OBJECT, offsetof(Course, reason), 0, "Why, if the schedule wants it; else None."},
    {"ends_alike", T_BOOL, offsetof(Course, ends_alike), 0, "Whether captured steps that are like the last one are ended here."},
    {"is_writing", T_BOOL, offsetof(Course, is_writing), 0, "Whether a thread writes rows of steps or scalars here."},
    {"is_over", T_BOOL, offsetof(Course, is_over), 0, "Whether the run is over: what is logged then is for Python."},
    {"must_send", T_BOOL, offsetof(Course, must_send), 0, "Whether what is logged is written at once, as the step that has just ended was."},
    {"sees_loss", T_BOOL, offsetof(Course, sees_loss), 0, "Whether of a step that is not plain the loss is seen, once it was read."},
    {"iterations", T_INT, offsetof(Course, iterations), 0, "How many iterations the step has had."},
    {"passes", T_INT, offsetof(Course, passes), 0, "How many backward passes it has had."},
    {"losses", T_INT, offsetof(Course, losses), 0, "How many losses it has had in the last iteration that had any, if it is captured."},
    {"loss_iteration", T_INT, offsetof(Course, loss_iteration), 0, "Which iteration that was."},
    {"started", T_DOUBLE, offsetof(Course, started), 0, "When it began, by the clock that durations are read from."},
    {"started_at", T_DOUBLE, offsetof(Course, started_at), 0, "When it began, in seconds since 1970."},
    {"recording_secs", T_DOUBLE, offsetof(Course, recording_secs), 0, "What its beginning took."},
    {"sent_at", T_DOUBLE, offsetof(Course, sent_at), 0, "When rows were last written."},
    {"leased_steps", T_LONGLONG, offsetof(Course, leased_steps), 0, "How many steps after it are not wanted either."},
    {"leased_secs", T_DOUBLE, offsetof(Course, leased_secs), 0, "After how many seconds the schedule is asked in any case."},
    {"root", T_OBJECT, offsetof(Course, root), 0, "A reference to the module that steps begin with."},
    {"optimizer", T_OBJECT, offsetof(Course, optimizer), 0, "A reference to the only optimizer, or None."},
    {"passed_steps", T_LONGLONG, offsetof(Course, passed_steps), READONLY, "How many steps were passed over here."},
    {"ended_steps", T_LONGLONG, offsetof(Course, ended_steps), READONLY, "How many captured steps were ended here."},
    {"observations", T_LONGLONG, offsetof(Course, observations), 0, "How many rows they had, until someone puts it back to 0."},
    {"written_secs", T_DOUBLE, offsetof(Course, written_secs), 0, "What writing them took, until someone puts it back to 0."},
    {"taken_scalars", T_LONGLONG, offsetof(Course, taken_scalars), READONLY, "How many scalars were taken here."},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef course_getset[] = {
    {"loss", course_get_loss, course_set_loss, "The loss of the step, if it is known.", NULL},
    {"waiting", course_get_waiting, NULL, "How many rows wait.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
#define COURSE_METHOD(NAME) (PyCFunction)(void (*)(void))NAME
static PyMethodDef course_methods[] = {
    {"on_forward", COURSE_METHOD(course_on_forward), METH_FASTCALL, "A hook before the forward pass of any module."},
    {"on_loss", course_on_loss, METH_O, "A backward pass starts from this tensor."},
    {"before_update", COURSE_METHOD(course_before_update), METH_FASTCALL, "A hook before an optimizer's step."},
    {"after_update", COURSE_METHOD(course_after_update), METH_FASTCALL, "A hook after an optimizer's step."},
    {"log", course_log, METH_O, "Take what the user logs; False if Python has to."},
    {"compare_by", course_compare_by, METH_O, "Say what captured steps are alike in."},
    {"may_end", course_may_end, METH_VARARGS, "Captured steps may be ended here, as long as what is given is so."},
    {"learn_name", course_learn_name, METH_O, "Take numbers of this name from now on."},
    {"take_steps", course_take_steps, METH_NOARGS, "Steps that are written, and rows of `steps` that wait: neither are known here any longer."},
    {"take_scalars", course_take_scalars, METH_NOARGS, "Scalars that are written, and rows of `scalars` that wait: likewise."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot course_slots[] = {
    {Py_tp_doc, "The course of steps."},
    {Py_tp_new, course_new},
    {Py_tp_dealloc, course_dealloc},
    {Py_tp_traverse, course_traverse},
    {Py_tp_clear, course_clear},
    {Py_tp_methods, course_methods},
    {Py_tp_members, course_members},
    {Py_tp_getset, course_getset},
    {0, NULL},
};
static PyType_Spec course_spec = {"backlight.reduce._kernel.Course", sizeof(Course), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, course_slots};

#endif
