/* A message of an Arrow stream to a file: its header is filled in, its checksum added, all in one call. */
#ifndef BACKLIGHT_KERNEL_WRITE_H
#define BACKLIGHT_KERNEL_WRITE_H

#include <Python.h>
#include <structmember.h>

#include "_kernel_crc.h"
#include "_kernel_sight.h"

#if !defined(_WIN32)
#include <errno.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
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

/* Where the messages of a stream go: its file, and what they have in common. */
typedef struct {
    PyObject_HEAD
    PyObject *pattern; /* bytes */
    Py_ssize_t places[4];
    long long size_bytes, full_bytes; /* of the file, which are whole messages; of one that takes no more */
    double looked_at;     /* when it was last looked whether the file is still there */
    unsigned int schema_crc, messages;
    int descriptor; /* -1 where no file is open */
    char has_links, is_busy; /* the last: a thread writes to it, and another one has to wait */
} Sink;
static PyTypeObject *sink_type;

static void wait_for_sink(const Sink *sink) {
    const struct timespec moment = {.tv_nsec = 50000};
    while (sink->is_busy) {
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&moment, NULL);
        Py_END_ALLOW_THREADS
    }
}

/* All of a message or nothing: what comes later must not stand behind half of one. -1 with errno. */
static int append_message(Sink *sink, Message *m) {
    char header[MAX_HEADER], trailer[TRAILER];
    int failed, why;
    wait_for_sink(sink);
    m->pattern = PyBytes_AsString(sink->pattern);
    m->pattern_size = PyBytes_Size(sink->pattern);
    m->body_at = sink->places[0];
    m->rows_at = sink->places[1];
    m->nodes_at = sink->places[2];
    m->buffers_at = sink->places[3];
    m->schema_crc = sink->schema_crc;
    m->number = sink->messages;
    errno = EINVAL;
    if (!is_sound(m)) return -1;
    fill_header(m, header);
    struct iovec pieces[PIECES] = {
        {header, (size_t)m->pattern_size}, {(char *)m->body, (size_t)m->body_size}, {trailer, TRAILER}};
    sink->is_busy = 1;
    Py_BEGIN_ALLOW_THREADS
    fill_trailer(m, header, trailer);
    failed = write_pieces(sink->descriptor, pieces);
    why = errno;
    if (failed && !ftruncate(sink->descriptor, sink->size_bytes)) lseek(sink->descriptor, sink->size_bytes, SEEK_SET);
    Py_END_ALLOW_THREADS
    sink->is_busy = 0;
    errno = why;
    if (failed) return -1;
    sink->size_bytes += m->pattern_size + m->body_size + TRAILER;
    sink->messages++;
    return 0;
}

/* write((rows, nodes, buffers, body)) */
static PyObject *sink_write(PyObject *self, PyObject *rows) {
    Message m;
    if (!PyTuple_Check(rows) || !PyArg_ParseTuple(rows, "Ly#y#y#", &m.rows, &m.nodes, &m.nodes_size, &m.buffers, &m.buffers_size, &m.body, &m.body_size))
        return PyErr_Occurred() ? NULL : refuse("write takes a tuple");
    return append_message((Sink *)self, &m) ? PyErr_SetFromErrno(PyExc_OSError) : nothing();
}

/* The file is no longer written to, nor is it by a thread that was about to. Its bytes are told, too: none are left here. */
static PyObject *sink_let_go(PyObject *self, PyObject *unused) {
    Sink *sink = (Sink *)self;
    (void)unused;
    wait_for_sink(sink);
    int descriptor = sink->descriptor;
    long long size_bytes = sink->size_bytes;
    sink->descriptor = -1;
    sink->size_bytes = 0;
    return Py_BuildValue("(iL)", descriptor, size_bytes);
}

/* Sink(pattern, places, schema_crc, full_bytes) */
static PyObject *sink_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *pattern;
    Py_ssize_t places[4];
    unsigned int schema_crc;
    long long full_bytes;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "S(nnnn)IL", &pattern, &places[0], &places[1], &places[2], &places[3], &schema_crc, &full_bytes)) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Sink *sink = (Sink *)allocate(type, 0);
    if (sink == NULL) return NULL;
    Py_INCREF(pattern);
    sink->pattern = pattern;
    memcpy(sink->places, places, sizeof places);
    sink->schema_crc = schema_crc;
    sink->full_bytes = full_bytes;
    sink->descriptor = -1;
    return (PyObject *)sink;
}

/* It holds nothing but bytes, so there is nothing to collect. */
static void sink_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_CLEAR(((Sink *)self)->pattern);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

enum { LOOK_SECS_TENTHS = 5 };

/* Whether a message can go there now: else Python must begin another file, or say what is wrong. */
static int is_ready(Sink *sink) {
    struct stat found;
    if (sink->descriptor < 0 || sink->size_bytes >= sink->full_bytes) return 0;
    if (!sink->has_links || seconds() - sink->looked_at <= LOOK_SECS_TENTHS / 10.0) return 1;
    if (fstat(sink->descriptor, &found) || !found.st_nlink) return 0;
    sink->looked_at = seconds();
    return 1;
}

static PyMethodDef sink_methods[] = {
    {"write", sink_write, METH_O, "Write packed rows as a message, all of it or nothing."},
    {"let_go", sink_let_go, METH_NOARGS, "The file, which is written to no longer, and how many bytes it has."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef sink_members[] = {
    {"descriptor", T_INT, offsetof(Sink, descriptor), 0, "The open file's, or -1."},
    {"has_links", T_BOOL, offsetof(Sink, has_links), 0, "Whether the file had a name when it was opened."},
    {"looked_at", T_DOUBLE, offsetof(Sink, looked_at), 0, "When it was last looked whether it still has one."},
    {"size_bytes", T_LONGLONG, offsetof(Sink, size_bytes), 0, "How many bytes were written to it."},
    {"messages", T_UINT, offsetof(Sink, messages), 0, "How many messages they are."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot sink_slots[] = {
    {Py_tp_doc, "Where the messages of a stream go."},
    {Py_tp_new, sink_new},
    {Py_tp_methods, sink_methods},
    {Py_tp_members, sink_members},
    {Py_tp_dealloc, sink_dealloc},
    {0, NULL},
};
static PyType_Spec sink_spec = {"backlight.reduce._kernel.Sink", sizeof(Sink), 0, Py_TPFLAGS_DEFAULT, sink_slots};
#endif

#endif
