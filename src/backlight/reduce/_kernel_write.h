/* A message of an Arrow stream to a file: its header is filled in, its checksum added, all in one call. */
#ifndef BACKLIGHT_KERNEL_WRITE_H
#define BACKLIGHT_KERNEL_WRITE_H

#include <Python.h>

#include "_kernel_crc.h"

#if !defined(_WIN32)
#include <errno.h>
#include <sys/uio.h>
#define HAS_WRITEV

enum { TRAILER = 16, PIECES = 3, MAX_HEADER = 1 << 16 };

/* What is put into the header's pattern, and where; store/packed.py finds the places. */
typedef struct {
    const char *pattern, *nodes, *buffers, *body;
    Py_ssize_t pattern_size, nodes_size, buffers_size, body_size, body_at, rows_at, nodes_at, buffers_at;
    long long rows;
    unsigned int schema_crc, number;
} Message;

static int has_place(const Message *m, Py_ssize_t at, Py_ssize_t size) { return at > 0 && at + size <= m->pattern_size; }

static int is_sound(const Message *m) {
    return m->pattern_size <= MAX_HEADER && has_place(m, m->body_at, 8) && has_place(m, m->rows_at, 8) &&
           has_place(m, m->nodes_at, m->nodes_size) && has_place(m, m->buffers_at, m->buffers_size);
}

static void fill_header(const Message *m, char *header) {
    int64_t body_size = m->body_size + TRAILER, rows = m->rows;
    memcpy(header, m->pattern, (size_t)m->pattern_size);
    memcpy(header + m->body_at, &body_size, 8);
    memcpy(header + m->rows_at, &rows, 8);
    memcpy(header + m->nodes_at, m->nodes, (size_t)m->nodes_size);
    memcpy(header + m->buffers_at, m->buffers, (size_t)m->buffers_size);
}

static void fill_trailer(const Message *m, const char *header, char *trailer) {
    memcpy(trailer, "BLc1", 4);
    memcpy(trailer + 4, &m->schema_crc, 4);
    memcpy(trailer + 8, &m->number, 4);
    uint32_t crc = crc32_from(0, (const uint8_t *)header, (size_t)m->pattern_size);
    crc = crc32_from(crc, (const uint8_t *)m->body, (size_t)m->body_size);
    crc = crc32_from(crc, (const uint8_t *)trailer, 12);
    memcpy(trailer + 12, &crc, 4);
}

/* All of the pieces, however often the system stops in between; -1 with errno where it will not go on. */
static int write_pieces(int descriptor, struct iovec *pieces) {
    for (int first = 0; first < PIECES;) {
        ssize_t written = writev(descriptor, pieces + first, PIECES - first);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return -1;
        for (; first < PIECES && (size_t)written >= pieces[first].iov_len; first++) written -= (ssize_t)pieces[first].iov_len;
        if (first == PIECES) break;
        pieces[first].iov_base = (char *)pieces[first].iov_base + written;
        pieces[first].iov_len -= (size_t)written;
    }
    return 0;
}

/* Returns how many bytes were written. */
static PyObject *write_message(PyObject *module, PyObject *arguments) {
    (void)module;
    Message m;
    int descriptor, failed;
    char header[MAX_HEADER], trailer[TRAILER];
    if (!PyArg_ParseTuple(arguments, "iy#(nnnn)(Ly#y#y#)II", &descriptor, &m.pattern, &m.pattern_size, &m.body_at,
                          &m.rows_at, &m.nodes_at, &m.buffers_at, &m.rows, &m.nodes, &m.nodes_size, &m.buffers,
                          &m.buffers_size, &m.body, &m.body_size, &m.schema_crc, &m.number))
        return NULL;
    if (!is_sound(&m)) {
        PyErr_SetString(PyExc_ValueError, "the pattern has no place for what is to be put into it");
        return NULL;
    }
    fill_header(&m, header);
    struct iovec pieces[PIECES] = {
        {header, (size_t)m.pattern_size}, {(char *)m.body, (size_t)m.body_size}, {trailer, TRAILER}};
    Py_BEGIN_ALLOW_THREADS
    fill_trailer(&m, header, trailer);
    failed = write_pieces(descriptor, pieces);
    Py_END_ALLOW_THREADS
    return failed ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromSsize_t(m.pattern_size + m.body_size + TRAILER);
}
#endif

#endif
