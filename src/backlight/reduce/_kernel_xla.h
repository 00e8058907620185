/* The same statistics inside of a program that XLA compiled, as a handler of its foreign function interface.
 *
 * Only what is read of that interface is declared here: it is a stable ABI, whose structs grow at their ends.
 * A row is HEADER words and then the counts of the dtype's bins, the most negative one first: see jax/words.py.
 */
#ifndef BACKLIGHT_KERNEL_XLA_H
#define BACKLIGHT_KERNEL_XLA_H

#include <Python.h>

#include "_kernel_jobs.h"

typedef struct XlaExtension {
    size_t struct_size;
    int type;
    struct XlaExtension *next;
} XlaExtension;

typedef struct {
    size_t struct_size;
    XlaExtension *extension;
    int major_version, minor_version;
} XlaVersion;

typedef struct {
    size_t struct_size;
    XlaVersion version;
} XlaMetadata;

typedef struct {
    XlaExtension base;
    XlaMetadata *metadata;
} XlaMetadataExtension;

typedef struct {
    size_t struct_size;
    XlaExtension *extension;
    int dtype;
    void *data;
    int64_t rank, *dims;
} XlaBuffer;

typedef struct {
    size_t struct_size;
    XlaExtension *extension;
    int64_t size;
    int *types;
    XlaBuffer **buffers;
} XlaBuffers;

typedef struct {
    int dtype;
    void *value;
} XlaScalar;

typedef struct {
    size_t struct_size;
    XlaExtension *extension;
    int64_t size;
    int *types;
    void **names, **values;
} XlaAttributes;

typedef struct {
    size_t struct_size;
    XlaExtension *extension;
    const void *api;
    void *context;
    int stage;
    XlaBuffers arguments, results;
    XlaAttributes attributes;
} XlaFrame;

enum { XLA_METADATA = 1, XLA_EXECUTE = 3, XLA_MAJOR = 0, XLA_MINOR = 1 };

/* By XLA's numbers of its types; those that are not here are converted before they are given. */
static int xla_dtype(int type) {
    static const int8_t KNOWN[] = {
        [1] = BOOL + 1, [2] = INT8 + 1, [3] = INT16 + 1, [4] = INT32 + 1, [5] = INT64 + 1, [6] = UINT8 + 1,
        [7] = UINT16 + 1, [8] = UINT32 + 1, [9] = UINT64 + 1, [10] = FLOAT16 + 1, [11] = FLOAT32 + 1,
        [12] = FLOAT64 + 1, [16] = BFLOAT16 + 1, [19] = FLOAT8_E5M2 + 1, [20] = FLOAT8_E4M3FN + 1,
        [24] = FLOAT8_E5M2FNUZ + 1, [25] = FLOAT8_E4M3FNUZ + 1,
    };
    return type < 0 || type >= (int)sizeof KNOWN ? -1 : KNOWN[type] - 1;
}

static int read_buffer(const XlaBuffer *from, Tensor *to) {
    memset(to, 0, sizeof *to);
    to->dtype = xla_dtype(from->dtype);
    if (to->dtype < 0 || from->rank > MAX_DIMS) return -1;
    to->data = from->data;
    to->dims = (int)from->rank;
    to->is_dense = 1;
    to->count = 1;
    for (int d = to->dims - 1; d >= 0; d--) {
        to->shape[d] = from->dims[d];
        to->stride[d] = to->count;
        to->count *= from->dims[d];
    }
    return 0;
}

enum { HEADER = 24, NUMBERS = 8 };

/* Keys fall where the dtype's smallest and largest magnitudes say; the first half is for negative ones. */
static void put_sketch(const Pairs *pairs, uint32_t *bins, int64_t length, int64_t first_key) {
    int64_t half = length / 2;
    for (int64_t i = 0; i < pairs->length; i++) {
        int64_t key = pairs->keys[i], at = key < 0 ? half - 1 + key + first_key : half + key - first_key;
        if (at >= 0 && at < length) bins[at] += pairs->counts[i];
    }
}

static void put_row(const Row *row, uint32_t *words) {
    uint32_t counts[] = {
        1, (uint32_t)(row->count - row->nans - row->infs), (uint32_t)row->zeros, (uint32_t)row->nans,
        (uint32_t)row->infs, (uint32_t)row->dead_units, (uint32_t)row->constant_units,
    };
    double numbers[NUMBERS] = {row->mean, row->std, row->min, row->max, row->abs_mean, row->abs_max, row->rms,
                               row->batch_std};
    memcpy(words, counts, sizeof counts);
    memcpy(words + HEADER - 2 * NUMBERS, numbers, sizeof numbers);
}

/* Without memory for it the row stays 0, which says that there is none. */
static void reduce_buffer(Job *job, uint32_t *words, int64_t length, int64_t first_key) {
    Crew crew;
    Pairs pairs = {NULL, NULL, 0, 0};
    memset(words, 0, (size_t)length * sizeof *words);
    if (!prepare_tasks(&crew, job, 1)) {
        prepare_workers(&crew, 1); /* XLA runs several calls at once by itself */
        if (!work(&crew) && !finish_job(job, &pairs)) {
            put_row(&job->row, words);
            put_sketch(&pairs, words + HEADER, length - HEADER, first_key);
        }
    }
    dismiss(&crew);
    free_pairs(&pairs);
}

/* Attributes come sorted by name: first_key, unit_dim. */
static int64_t attribute(const XlaFrame *frame, int place) {
    return *(const int64_t *)((const XlaScalar *)frame->attributes.values[place])->value;
}

/* A tensor, or two of which the second is taken away from the first, to a row. */
static void *observe_buffers(XlaFrame *frame) {
    if (frame->extension != NULL && frame->extension->type == XLA_METADATA) {
        XlaMetadata *metadata = ((XlaMetadataExtension *)frame->extension)->metadata;
        metadata->version.major_version = XLA_MAJOR;
        metadata->version.minor_version = XLA_MINOR;
        return NULL;
    }
    if (frame->stage != XLA_EXECUTE) return NULL;
    Job job;
    memset(&job, 0, sizeof job);
    XlaBuffer *result = frame->results.buffers[0];
    if (read_buffer(frame->arguments.buffers[0], &job.tensor)) return NULL;
    if (frame->arguments.size > 1) job.tensor.minus = frame->arguments.buffers[1]->data;
    job.row.dtype = (int8_t)job.tensor.dtype;
    job.unit_dim = (int)attribute(frame, 1);
    reduce_buffer(&job, result->data, result->dims[result->rank - 1], attribute(frame, 0));
    return NULL;
}

static PyObject *xla_handler(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyCapsule_New((void *)observe_buffers, "xla._CUSTOM_CALL_TARGET", NULL);
}

#endif
