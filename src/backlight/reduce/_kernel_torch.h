/* Reads torch's tensors without linking torch: through the C function that DLPack's exchange API names
 * (torch 2.10 and later), else through their Python attributes. */
#ifndef BACKLIGHT_KERNEL_TORCH_H
#define BACKLIGHT_KERNEL_TORCH_H

#include <Python.h>

#include "_kernel_tensor.h"

/* ---------------------------------------------------------------- DLPack, as its specification says */

typedef struct {
    int32_t device_type, device_id;
} DLDevice;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    uint32_t major, minor;
    void *previous;
    void *managed_tensor_allocator, *managed_tensor_from_py_object, *managed_tensor_to_py_object;
    int (*dltensor_from_py_object)(void *, DLTensor *);
} DLExchange;

enum { DL_CPU = 1, DL_MAJOR = 1 };
enum { DL_INT, DL_UINT, DL_FLOAT, DL_BFLOAT = 4, DL_BOOL = 6, DL_E4M3FN = 10, DL_E4M3FNUZ, DL_E5M2, DL_E5M2FNUZ };

static int dtype_of(DLDataType type) {
    int size = type.bits == 8 ? 0 : type.bits == 16 ? 1 : type.bits == 32 ? 2 : type.bits == 64 ? 3 : -1;
    static const int8_t INTS[] = {INT8, INT16, INT32, INT64}, UINTS[] = {UINT8, UINT16, UINT32, UINT64};
    static const int8_t FLOATS[] = {-1, FLOAT16, FLOAT32, FLOAT64};
    if (type.lanes != 1 || size < 0) return -1;
    switch (type.code) {
    case DL_INT: return INTS[size];
    case DL_UINT: return UINTS[size];
    case DL_FLOAT: return FLOATS[size];
    case DL_BFLOAT: return size == 1 ? BFLOAT16 : -1;
    case DL_BOOL: return size == 0 ? BOOL : -1;
    case DL_E4M3FN: return FLOAT8_E4M3FN;
    case DL_E4M3FNUZ: return FLOAT8_E4M3FNUZ;
    case DL_E5M2: return FLOAT8_E5M2;
    case DL_E5M2FNUZ: return FLOAT8_E5M2FNUZ;
    default: return -1;
    }
}

/* ---------------------------------------------------------------- torch, once it is known */

static struct {
    PyObject *tensor, *parameter; /* the classes whose elements lie where data_ptr says */
    PyObject *is_neg, *storage_of, *first_byte, *size, *thread_count, *dtypes;
    int (*describe)(void *, DLTensor *);
} torch;

enum { READ = 0, NOT_READABLE = 1, HAS_ERROR = -1 };

/* Views whose sign is flipped when they are read are not what their memory says. */
static int check_neg(PyObject *tensor) {
    PyObject *answer = PyObject_CallFunctionObjArgs(torch.is_neg, tensor, NULL);
    if (answer == NULL) return HAS_ERROR;
    int is_neg = answer == Py_True;
    Py_DECREF(answer);
    return is_neg ? NOT_READABLE : READ;
}

static int read_described(PyObject *tensor, Tensor *t) {
    DLTensor seen;
    if (torch.describe(tensor, &seen)) { /* sparse, quantized, without storage */
        PyErr_Clear();
        return NOT_READABLE;
    }
    t->dtype = dtype_of(seen.dtype);
    t->dims = seen.ndim;
    if (seen.device.device_type != DL_CPU || t->dtype < 0 || t->dims > MAX_DIMS || !seen.strides) return NOT_READABLE;
    t->data = (const char *)seen.data + seen.byte_offset;
    for (int d = 0; d < t->dims; d++) {
        t->shape[d] = seen.shape[d];
        t->stride[d] = seen.strides[d];
    }
    return READ;
}

static int read_sizes(PyObject *sizes, int dims, int64_t *to) {
    if (sizes == NULL || PyTuple_Size(sizes) != dims) return -1;
    for (int d = 0; d < dims; d++) to[d] = PyLong_AsLongLong(PyTuple_GetItem(sizes, d));
    return PyErr_Occurred() ? -1 : 0;
}

static int read_attributes(PyObject *tensor, Tensor *t) {
    PyObject *dtype = PyObject_GetAttrString(tensor, "dtype"), *is_cpu = PyObject_GetAttrString(tensor, "is_cpu");
    PyObject *code = dtype ? PyDict_GetItemWithError(torch.dtypes, dtype) : NULL, *shape = NULL, *stride = NULL, *data = NULL;
    int found = NOT_READABLE;
    if (code && is_cpu == Py_True) {
        /* Sparse tensors have neither strides nor a pointer: asking for them raises. */
        shape = PyObject_GetAttrString(tensor, "shape");
        stride = PyObject_CallMethod(tensor, "stride", NULL);
        data = PyObject_CallMethod(tensor, "data_ptr", NULL);
        Py_ssize_t dims = shape ? PyTuple_Size(shape) : -1;
        if (data && dims >= 0 && dims <= MAX_DIMS && !read_sizes(shape, (int)dims, t->shape) &&
            !read_sizes(stride, (int)dims, t->stride)) {
            t->dims = (int)dims;
            t->dtype = (int)PyLong_AsLong(code);
            t->data = PyLong_AsVoidPtr(data);
            found = READ;
        }
    }
    PyErr_Clear();
    Py_XDECREF(dtype);
    Py_XDECREF(is_cpu);
    Py_XDECREF(shape);
    Py_XDECREF(stride);
    Py_XDECREF(data);
    return found;
}

/* An unsigned number that a method without arguments answers with. */
static int ask(PyObject *method, PyObject *object, uint64_t *answer) {
    PyObject *number = PyObject_CallFunctionObjArgs(method, object, NULL);
    if (number == NULL) return HAS_ERROR;
    *answer = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? HAS_ERROR : READ;
}

/* Sharding and offloading free the elements, or some of them, and keep the tensor. */
static int check_memory(PyObject *tensor, const Tensor *t) {
    PyObject *storage = PyObject_CallFunctionObjArgs(torch.storage_of, tensor, NULL);
    if (storage == NULL) return HAS_ERROR;
    uint64_t first = 0, size = 0, last = (uint64_t)(uintptr_t)t->data;
    int found = ask(torch.first_byte, storage, &first) || ask(torch.size, storage, &size) ? HAS_ERROR : READ;
    Py_DECREF(storage);
    for (int d = 0; d < t->dims; d++) last += (uint64_t)((t->shape[d] - 1) * t->stride[d] * DTYPE_BYTES[t->dtype]);
    if (found == READ && (!first || last + (uint64_t)DTYPE_BYTES[t->dtype] > first + size)) found = NOT_READABLE;
    return found;
}

/* Where the elements of a tensor of our own lie. */
static int read_own(PyObject *tensor, Tensor *t) {
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    if (type != torch.tensor && type != torch.parameter) return NOT_READABLE;
    int found = torch.describe ? read_described(tensor, t) : read_attributes(tensor, t);
    if (found != READ) return found;
    t->minus = NULL;
    t->is_dense = 0;
    t->count = 1;
    for (int d = 0; d < t->dims; d++) t->count *= t->shape[d];
    return READ;
}

/* Where any tensor's elements lie, if they can be read there as they are. */
static int read_tensor(PyObject *tensor, Tensor *t) {
    int found = read_own(tensor, t);
    if (found == READ) found = check_neg(tensor);
    return found == READ && t->count ? check_memory(tensor, t) : found;
}

/* Below this no memory is given out, but where a system is small or old. */
static const uint64_t LOWEST_ADDRESS = 1ull << 40;

/* The same, for one that is just being computed with: if its memory is gone, then all of it, so that its elements
 * seem to lie near 0. Torch's own functions look no closer. */
static int read_live(PyObject *tensor, Tensor *t) {
    int found = read_own(tensor, t);
    if (found == READ) found = check_neg(tensor);
    int is_doubtful = found == READ && t->count && (uint64_t)(uintptr_t)t->data < LOWEST_ADDRESS;
    return is_doubtful ? check_memory(tensor, t) : found;
}

/* How many threads torch would use now; -1 with an exception set. */
static int torch_threads(void) {
    PyObject *answer = PyObject_CallFunctionObjArgs(torch.thread_count, NULL);
    if (answer == NULL) return -1;
    int threads = (int)PyLong_AsLong(answer);
    Py_DECREF(answer);
    return threads;
}

/* Called once, with torch's classes and functions, and the capsule of its exchange API or None. */
static PyObject *connect(PyObject *module, PyObject *arguments) {
    (void)module;
    enum { KEPT = 8 };
    PyObject *given[KEPT], *capsule;
    PyObject **kept[KEPT] = {&torch.tensor, &torch.parameter, &torch.is_neg, &torch.storage_of,
                             &torch.first_byte, &torch.size, &torch.thread_count, &torch.dtypes};
    if (!PyArg_ParseTuple(arguments, "OOOOOOOOO", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5],
                          &given[6], &given[7], &capsule))
        return NULL;
    torch.describe = NULL;
    if (capsule != Py_None) {
        DLExchange *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (api == NULL) return NULL;
        if (api->major == DL_MAJOR) torch.describe = api->dltensor_from_py_object;
    }
    for (int i = 0; i < KEPT; i++) {
        Py_INCREF(given[i]);
        Py_XDECREF(*kept[i]);
        *kept[i] = given[i];
    }
    Py_RETURN_NONE;
}

#endif
