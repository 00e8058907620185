/* The statistics and the sketch of CPU tensors, many in one native call.
 *
 * This file is what Python sees: a table that tensors become rows of. spec.py says what each number means.
 *
 *     _kernel_tensor.h   a tensor's elements as float or double
 *     _kernel_sketch.h   their moments, and the sketch that counts them
 *     _kernel_pairs.h    a sketch as it is stored
 *     _kernel_digest.h   whether a tensor has changed
 *     _kernel_units.h    what units do over a batch
 *     _kernel_couples.h  elements counted two at a time
 *     _kernel_avx512.h   the inner loops of all three once more, for wide vectors
 *     _kernel_jobs.h     many tensors on many threads
 *     _kernel_torch.h    where torch's tensors lie
 *     _kernel_table.h    rows, filled tensor by tensor
 *     _kernel_sight.h    what a step sees: tensors and their gradients
 *     _kernel_held.h     parameters around an optimizer's step
 *     _kernel_hook.h     the hooks on parameters
 *     _kernel_owner.h    whether modules hold what they held
 *     _kernel_calls.h    the hooks on modules
 *     _kernel_alike.h    a captured step that is like the one before
 *     _kernel_message.h  rows as a message of an Arrow stream
 *     _kernel_crc.h      its checksum
 *     _kernel_write.h    both to a stream's file
 *     _kernel_xla.h      rows of buffers inside of a compiled JAX program
 *     _kernel_records.h  structs as rows of such a message
 *     _kernel_steps.h    what is known of the step under way
 *     _kernel_ending.h   the end of a captured step that is like the one before
 *     _kernel_course.h   the course of steps
 *     _kernel_ear.h      hears where backward passes start
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include "_kernel_alike.h"
#include "_kernel_avx512.h"
#include "_kernel_calls.h"
#include "_kernel_course.h"
#include "_kernel_crc.h"
#include "_kernel_ear.h"
#include "_kernel_ending.h"
#include "_kernel_owner.h"
#include "_kernel_table.h"
#include "_kernel_write.h"
#include "_kernel_xla.h"

static PyObject *dtype_names(void) {
    PyObject *tuple = PyTuple_New(DTYPES);
    for (int i = 0; tuple && i < DTYPES; i++) PyTuple_SetItem(tuple, i, PyUnicode_FromString(DTYPE_NAMES[i]));
    return tuple;
}

static PyObject *column_names(void) {
    PyObject *tuple = PyTuple_New(COLUMN_COUNT);
    for (int i = 0; tuple && i < COLUMN_COUNT; i++) PyTuple_SetItem(tuple, i, PyUnicode_FromString(COLUMNS[i].name));
    return tuple;
}

static PyObject *record_names(const RecordColumn *columns, int width) {
    PyObject *tuple = PyTuple_New(width);
    for (int i = 0; tuple && i < width; i++) PyTuple_SetItem(tuple, i, PyUnicode_FromString(columns[i].name));
    return tuple;
}

static int add_to(PyObject *module, const char *name, PyObject *value) {
    int bad = value == NULL || PyModule_AddObjectRef(module, name, value);
    Py_XDECREF(value);
    return bad;
}

/* `type` is where the type is kept too, for objects that are made here. */
static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **type) {
    PyObject *made = PyType_FromSpec(spec);
    if (made && type) {
        Py_INCREF(made);
        *type = (PyTypeObject *)made;
    }
    return add_to(module, name, made);
}

enum { PLAIN_LANES = 1, AVX2_LANES = 8, AVX512_LANES = 16 };

/* How many floats this processor works on at a time. */
static int widest_lanes(void) {
#ifdef HAS_AVX2
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
        return PLAIN_LANES;
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
               ? AVX512_LANES
               : AVX2_LANES;
#else
    return PLAIN_LANES;
#endif
}

static int choose_lanes(int most) {
    int widest = widest_lanes(), lanes = most < widest ? most : widest;
#ifdef HAS_AVX2
    has_avx2 = lanes >= AVX2_LANES;
    look32 = lanes >= AVX512_LANES ? look32_avx512 : has_avx2 ? look32_avx2 : look32_plain;
    look64 = has_avx2 ? look64_avx2 : look64_plain;
    end_couples = lanes >= AVX512_LANES ? end_couples_avx512 : NULL;
    see_columns = lanes >= AVX512_LANES ? columns_avx512 : NULL;
    count_subnormals32 = lanes >= AVX512_LANES ? count_subnormals32_avx512 : has_avx2 ? count_subnormals32_avx2 : count_subnormals32_plain;
    see_samples = has_avx2 ? see_avx2 : see_plain;
#endif
    return lanes >= AVX512_LANES ? AVX512_LANES : lanes >= AVX2_LANES ? AVX2_LANES : PLAIN_LANES;
}

static PyObject *use_lanes(PyObject *module, PyObject *most) {
    (void)module;
    long given = PyLong_AsLong(most);
    if (given == -1 && PyErr_Occurred()) return NULL;
    return PyLong_FromLong(choose_lanes(given < 1 ? 1 : given > AVX512_LANES ? AVX512_LANES : (int)given));
}

static int fill_module(PyObject *module) {
    fill_float8();
    fill_crc_tables();
    choose_lanes(AVX512_LANES);
    if (name_what_is_asked() || add_type(module, "Table", &table_spec, NULL) ||
        add_type(module, "Seen", &seen_spec, &seen_type) || add_type(module, "Sights", &sights_spec, &sights_type) ||
        add_type(module, "Held", &held_spec, NULL) ||
        add_type(module, "Call", &call_spec, &call_type) || add_type(module, "Callee", &callee_spec, &callee_type) ||
        add_type(module, "CallHooks", &hooks_spec, &hooks_type) || add_type(module, "Likeness", &likeness_spec, &likeness_type) ||
        add_type(module, "Course", &course_spec, &course_type) ||
        add_type(module, "Ear", &ear_spec, NULL))
        return -1;
#ifdef HAS_WRITEV
    if (add_type(module, "Sink", &sink_spec, &sink_type)) return -1;
#endif
    if (add_to(module, "STEP_COLUMNS", record_names(STEP_COLUMNS, STEP_WIDTH)) ||
        add_to(module, "SCALAR_COLUMNS", record_names(SCALAR_COLUMNS, SCALAR_WIDTH)))
        return -1;
    return add_to(module, "DTYPES", dtype_names()) || add_to(module, "COLUMNS", column_names()) ? -1 : 0;
}

/* ---------------------------------------------------------------- has a tensor changed? */

static PyObject *fingerprint(PyObject *module, PyObject *tensor) {
    (void)module;
    Tensor t;
    int found = read_tensor(tensor, &t);
    if (found == HAS_ERROR) return NULL;
    return PyLong_FromUnsignedLongLong(found == READ ? quick_digest(&t) : 0);
}

/* Digests tensors together; `numbers` has a place for each, and 0 where one cannot be read here. */
static int digest_all(PyObject *tensors, Job *jobs, Py_ssize_t *places, uint64_t *numbers) {
    Py_ssize_t length = PyTuple_Size(tensors), jobs_length = 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        int found = read_tensor(PyTuple_GetItem(tensors, i), &jobs[jobs_length].tensor);
        if (found == HAS_ERROR) return -1;
        Tensor small = jobs[jobs_length].tensor;
        int is_small = found == READ && small.count * DTYPE_BYTES[small.dtype] <= FEW_BYTES;
        numbers[i] = is_small ? quick_digest(&small) : 0; /* of all of it */
        if (found == NOT_READABLE || is_small) continue;
        start_job(&jobs[jobs_length], ONLY_DIGEST);
        places[jobs_length++] = i;
    }
    Crew crew;
    int failed = jobs_length && run_crew(&crew, jobs, jobs_length);
    for (Py_ssize_t i = 0; i < jobs_length && !failed; i++) numbers[places[i]] = digest_of(&jobs[i]);
    if (jobs_length) dismiss(&crew);
    return failed ? -1 : 0;
}

static PyObject *numbers_of(const uint64_t *numbers, Py_ssize_t length) {
    PyObject *list = PyList_New(length);
    for (Py_ssize_t i = 0; list && i < length; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (number == NULL || PyList_SetItem(list, i, number)) Py_CLEAR(list);
    }
    return list;
}

static PyObject *fingerprints(PyObject *module, PyObject *given) {
    (void)module;
    PyObject *tensors = PySequence_Tuple(given), *list = NULL; /* a tuple keeps its tensors alive */
    if (tensors == NULL) return NULL;
    size_t length = (size_t)PyTuple_Size(tensors) + 1;
    Job *jobs = malloc(length * sizeof *jobs);
    Py_ssize_t *places = malloc(length * sizeof *places);
    uint64_t *numbers = malloc(length * sizeof *numbers);
    if (!jobs || !places || !numbers) PyErr_NoMemory();
    else if (!digest_all(tensors, jobs, places, numbers)) list = numbers_of(numbers, (Py_ssize_t)length - 1);
    free(jobs);
    free(places);
    free(numbers);
    Py_DECREF(tensors);
    return list;
}

static PyMethodDef module_methods[] = {
    {"fingerprint", fingerprint, METH_O, "A number that changes when a tensor does, by some of its bytes; 0 where none can be told."},
    {"fingerprints", fingerprints, METH_O, "A number for each tensor that changes when any of its bytes do; 0 where none can be told."},
    {"connect", connect, METH_VARARGS, "Say where torch's classes and functions are."},
    {"connect_sight", connect_sight, METH_VARARGS, "Say where what is asked at each sight is."},
    {"are_held", are_held, METH_O, "Whether the tensor of each is there, with our hook; false where Python must look."},
    {"has_strangers", has_strangers, METH_O, "Whether any module, by a weak reference, is gone, or has one in it that is not among them."},
    {"sizes_differ", sizes_differ, METH_O, "Whether any module, by a weak reference, has not so many tensors and modules."},
    {"find_held", pairs_of_held, METH_O, "Pairs of each and its tensor, of those that are there; None where Python must look."},
    {"hook_held", hook_held, METH_VARARGS, "Put each on its parameter, under a key; those that are left for Python."},
    {"unhook_held", unhook_held, METH_O, "Take each off its parameter; those that are left for Python."},
    {"pack_rows", pack_rows, METH_VARARGS, "Rows that are dictionaries, as Table.pack; None where Arrow must do it."},
    {"use_lanes", use_lanes, METH_O, "Work on at most so many floats at a time; return how many that are: 1, 8 or 16."},
    {"xla_handler", xla_handler, METH_NOARGS, "What XLA calls for the row of a buffer, as a capsule."},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};
static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_kernel", "Statistics and sketches of CPU tensors.", 0, module_methods, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&module_definition); }
