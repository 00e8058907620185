/* Structs, all of one kind, as rows of a message of an Arrow stream. */
#ifndef BACKLIGHT_KERNEL_RECORDS_H
#define BACKLIGHT_KERNEL_RECORDS_H

#include "_kernel_message.h"
#include "_kernel_write.h"

enum RecordKind { WHOLE, SHORT_WHOLE, REAL, FLAG, TEXT, MISSING };

typedef struct {
    const char *name;
    enum RecordKind kind;
    size_t at, has_at; /* where a record has it, and an int that says whether it has it; 0 where each does */
    Name (*text)(const void *record, const void *context);
} RecordColumn;

typedef struct {
    const RecordColumn *columns;
    int width;
    const char *records;
    size_t stride;
    int64_t length;
    const void *context; /* for texts */
} Records;

static const char *record_at(const Records *r, int64_t row) { return r->records + (size_t)row * r->stride; }

static int has_value(const Records *r, const RecordColumn *column, int64_t row) {
    int has = 1;
    if (column->kind == MISSING) return 0;
    if (column->has_at) memcpy(&has, record_at(r, row) + column->has_at, sizeof has);
    return has;
}

static void put_record_validity(Packing *body, const Records *r, const RecordColumn *column) {
    int64_t nulls = 0;
    for (int64_t i = 0; i < r->length; i++) nulls += !has_value(r, column, i);
    add_node(body, r->length, nulls);
    uint8_t *to = take_buffer(body, nulls ? (r->length + 7) / 8 : 0);
    if (to == NULL || nulls == 0) return;
    memset(to, 0, (size_t)(r->length + 7) / 8);
    for (int64_t i = 0; i < r->length; i++) to[i / 8] |= (uint8_t)(has_value(r, column, i) << (i % 8));
}

static void put_record_texts(Packing *body, const Records *r, const RecordColumn *column) {
    int32_t *offsets = take_buffer(body, (r->length + 1) * 4);
    int64_t total = 0;
    for (int64_t i = 0; i < r->length; i++) {
        if (offsets) offsets[i] = (int32_t)total;
        total += column->text(record_at(r, i), r->context).length;
    }
    if (offsets) offsets[r->length] = (int32_t)total;
    char *text = take_buffer(body, total);
    for (int64_t i = 0; text && i < r->length; i++) {
        Name name = column->text(record_at(r, i), r->context);
        memcpy(text + offsets[i], name.text, (size_t)name.length);
    }
}

static void put_record_flags(Packing *body, const Records *r, const RecordColumn *column) {
    int64_t bytes = (r->length + 7) / 8;
    uint8_t *to = take_buffer(body, bytes);
    if (to) memset(to, 0, (size_t)bytes);
    for (int64_t i = 0; to && i < r->length; i++) {
        int flag;
        memcpy(&flag, record_at(r, i) + column->at, sizeof flag);
        to[i / 8] |= (uint8_t)((flag != 0) << (i % 8));
    }
}

static void put_record_numbers(Packing *body, const Records *r, const RecordColumn *column) {
    size_t size = column->kind == SHORT_WHOLE ? 4 : 8;
    char *to = take_buffer(body, r->length * (int64_t)size);
    for (int64_t i = 0; to && i < r->length; i++, to += size) {
        memset(to, 0, size);
        if (has_value(r, column, i)) memcpy(to, record_at(r, i) + column->at, size);
    }
}

static int fill_records(Packing *body, const void *from) {
    const Records *r = from;
    for (const RecordColumn *column = r->columns; column < r->columns + r->width; column++) {
        put_record_validity(body, r, column);
        if (column->kind == TEXT) put_record_texts(body, r, column);
        else if (column->kind == FLAG) put_record_flags(body, r, column);
        else put_record_numbers(body, r, column);
    }
    return 0;
}

/* Memory that messages are made in, the same each time. */
typedef struct {
    char *bytes;
    int64_t capacity;
} Room;

static int make_message_room(Room *room, int64_t bytes) {
    if (bytes <= room->capacity) return 0;
    char *larger = malloc((size_t)bytes * 2);
    if (larger == NULL) return -1;
    free(room->bytes);
    room->bytes = larger;
    room->capacity = bytes * 2;
    return 0;
}

#ifdef HAS_WRITEV
/* Calls `fill` twice, as `pack` does, and writes what it has filled; -1 where that cannot be done, and nothing was. */
static int append_filled(Sink *sink, Room *room, int64_t rows, int (*fill)(Packing *, const void *), const void *from) {
    Packing body = {.bytes = NULL};
    fill(&body, from);
    if (make_message_room(room, body.used)) return -1;
    body.bytes = room->bytes;
    body.used = body.node_count = body.buffer_count = 0;
    fill(&body, from);
    Message m = {.rows = rows, .nodes = (const char *)body.nodes, .nodes_size = body.node_count * 16,
                 .buffers = (const char *)body.buffers, .buffers_size = body.buffer_count * 16,
                 .body = body.bytes, .body_size = (Py_ssize_t)body.used};
    return append_message(sink, &m);
}
#endif

#endif
