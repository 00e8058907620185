/* Many tensors at once: cut into tasks for the threads of torch, put together again as rows.
 *
 * The threads are those of the OpenMP runtime that torch has loaded already; it is looked up at run
 * time, so the module neither links nor starts a second one. How tensors are cut does not depend on the
 * number of threads, and parts are put together in their order, so neither does any result.
 */
#ifndef BACKLIGHT_KERNEL_JOBS_H
#define BACKLIGHT_KERNEL_JOBS_H

#if !defined(_WIN32)
#include <dlfcn.h>
#endif

#include "_kernel_digest.h"
#include "_kernel_pairs.h"
#include "_kernel_units.h"

enum { CHUNK = 1 << 14, LARGE = 1 << 21, FEW = 8, MAX_WORKERS = 64, MOST_AT_A_TIME = 4 };

/* A tensor of so many elements is one thread's: as torch has it, or, where it comes alone, what takes longer to read
 * than another thread to be woken. */
enum { GRAIN = 1 << 15, GRAIN_ALONE = 1 << 14 };

typedef struct {
    int64_t count, zeros, nans, infs;
    double mean, std, min, max, abs_mean, abs_max, rms, batch_std;
    int32_t order, iteration, site, units, dead_units, constant_units;
    int16_t quantity;
    int8_t dtype, has_finite, has_units;
} Row;

typedef struct {
    Pairs pairs; /* of all parts that this thread worked on */
    int is_taken, has_failed;
} Worker;

/* What one task found. */
typedef struct {
    Moments moments;
    Spread spread;
    Digest digest;
    const Worker *worker;
    int64_t pairs_start, pairs_end;
} Part;

enum Digesting { NO_DIGEST, WITH_DIGEST, ONLY_DIGEST };

/* One tensor that becomes one row. Its tasks are chunks of its elements; for units they are tiles of its
 * positions, which for a wide tensor come besides the chunks. */
typedef struct {
    Tensor tensor;  /* as it was given */
    Tensor ordered; /* the same elements in the order of memory */
    int unit_dim;
    char *copy; /* where the elements go too, in the order of memory, or NULL */
    int is_streamed;
    enum Digesting digesting; /* only of a tensor without units */
    Units units;
    Row row;
    Part *parts;
    int64_t chunks, tiles;
    uint64_t digest; /* once it is known */
    void *owner;     /* of whoever made the job */
    double scale; /* keeps squares of extreme values inside the range of double */
} Job;

/* ---------------------------------------------------------------- tasks */

static int64_t chunk_end(const Tensor *t, int64_t chunk) {
    return (chunk + 1) * CHUNK < t->count ? (chunk + 1) * CHUNK : t->count;
}

#ifdef HAS_AVX2
/* Past the caches, which a large copy would only empty. */
AVX2 static void stream(char *to, const char *from, size_t bytes) {
    for (; bytes >= 32; bytes -= 32, to += 32, from += 32)
        _mm256_stream_si256((__m256i *)(void *)to, _mm256_loadu_si256((const __m256i *)(const void *)from));
    memcpy(to, from, bytes);
    _mm_sfence();
}
#endif

/* While they are in the cache. */
static void keep_block(const Job *job, int64_t at, int n) {
    int64_t size = DTYPE_BYTES[job->tensor.dtype];
    char *to = job->copy + at * size;
    const char *from = (const char *)job->ordered.data + at * size;
#ifdef HAS_AVX2
    if (job->is_streamed && (uintptr_t)to % 32 == 0) {
        stream(to, from, (size_t)(n * size));
        return;
    }
#endif
    memcpy(to, from, (size_t)(n * size));
}

static void do_narrow(const Job *job, int64_t chunk, Part *part) {
    const Tensor *t = &job->ordered;
    float room[BLOCK];
    int64_t start = chunk * CHUNK, end = chunk_end(t, chunk);
    for (int64_t at = start; at < end; at += BLOCK) {
        int n = at_most(end - at, BLOCK);
        block32(elements(t, at, n, room), n, &part->moments, &sketch32);
        if (job->copy) keep_block(job, at, n);
    }
    for (int64_t at = start; sketch32.range.has_subnormal && at < end; at += BLOCK) {
        int n = at_most(end - at, BLOCK);
        count_subnormals32(elements(t, at, n, room), n, &sketch32);
    }
}

static void do_wide(const Job *job, int64_t chunk, Part *part) {
    const Tensor *t = &job->ordered;
    double room[BLOCK];
    int64_t start = chunk * CHUNK, end = chunk_end(t, chunk);
    for (int64_t at = start; at < end; at += BLOCK) {
        int n = at_most(end - at, BLOCK);
        block64(elements(t, at, n, room), n, &part->moments, &sketch64);
        if (job->copy) keep_block(job, at, n);
    }
    for (int64_t at = start; sketch64.range.has_subnormal && at < end; at += BLOCK) {
        int n = at_most(end - at, BLOCK);
        count_subnormals64(elements(t, at, n, room), n, &sketch64);
    }
}

/* Moments alone, of elements that are scaled first. */
static void do_scaled(const Job *job, int64_t chunk, Part *part) {
    const Tensor *t = &job->ordered;
    double room[BLOCK];
    int64_t end = chunk_end(t, chunk);
    clear_moments(&part->moments);
    for (int64_t at = chunk * CHUNK; at < end; at += BLOCK) {
        int n = at_most(end - at, BLOCK);
        const double *x = elements(t, at, n, room);
        for (int i = 0; i < n; i++) room[i] = x[i] * job->scale;
        block64(room, n, &part->moments, NULL);
    }
}

/* Calls TILE_CALL for each tile of a task, with its first position `at` and its `n` positions. */
#define EACH_TILE(TASK, TILE_CALL)                                                                    \
    for (int64_t at = (TASK) * u->per_task, end = at + u->per_task; at < end && at < u->positions;) { \
        int n = at_most((end < u->positions ? end : u->positions) - at, TILE);                        \
        TILE_CALL;                                                                                    \
        at += n;                                                                                      \
    }

static void count_tile_subnormals(const Units *u, int64_t at, int n) {
    float room[TILE];
    for (int64_t s = 0; s < u->samples; s++)
        count_subnormals32(elements(&u->tensor, s * u->positions + at, n, room), n, &sketch32);
}

static void do_narrow_tiles(const Job *job, int64_t task, Part *part) {
    const Units *u = &job->units;
    EACH_TILE(task, narrow_tile(u, at, n, &part->moments, &sketch32, &part->spread))
    if (sketch32.range.has_subnormal) EACH_TILE(task, count_tile_subnormals(u, at, n))
}

static void do_wide_tiles(const Job *job, int64_t task, Part *part) {
    const Units *u = &job->units;
    EACH_TILE(task, wide_tile(u, at, n, &part->spread))
}

/* Of a chunk that was just read, and is still in the cache. */
static void digest_chunk(const Job *job, int64_t chunk, Part *part) {
    if (!job->ordered.is_dense) return;
    int64_t size = DTYPE_BYTES[job->tensor.dtype], start = chunk * CHUNK;
    part->digest = (Digest){{0}, {0}};
    digest_lines(&part->digest, (const char *)job->ordered.data + start * size,
                 (size_t)((chunk_end(&job->ordered, chunk) - start) * size), LINE);
}

static void read_part(const Job *job, int64_t number, Part *part) {
    if (!is_wide(job->tensor.dtype)) (job->tiles ? do_narrow_tiles : do_narrow)(job, number, part);
    else if (number < job->chunks) do_wide(job, number, part);
    else do_wide_tiles(job, number - job->chunks, part);
}

/* Elements are counted into the thread's sketch; `hand_in` moves it to the part. */
static void do_part(const Job *job, int64_t number, const Worker *worker) {
    Part *part = &job->parts[number];
    int is_narrow = !is_wide(job->tensor.dtype);
    Range *range = is_narrow ? &sketch32.range : &sketch64.range;
    int had_subnormal = range->has_subnormal;
    sketch32.couples.is_worthwhile = job->tensor.count >= WORTHWHILE;
    range->has_subnormal = 0; /* only where this task has some, it looks for them once more */
    clear_moments(&part->moments);
    part->spread = (Spread){0.0, 0};
    part->worker = worker;
    part->pairs_start = part->pairs_end = 0;
    if (job->digesting != ONLY_DIGEST) read_part(job, number, part);
    if (job->digesting != NO_DIGEST) digest_chunk(job, number, part);
    range->has_subnormal |= had_subnormal;
}

/* Some parts of a tensor, one after the other, that one thread does. */
typedef struct {
    Job *job;
    int64_t first, end;
} Task;

/* The tasks of each thread in a row. Who is done with its own helps the others. */
typedef struct {
    Task *tasks;
    int64_t length, next[MAX_WORKERS], ends[MAX_WORKERS];
    Worker *workers;
    int threads;
} Queue;

/* Moves what a thread has counted of a tensor to the last part that it worked on. */
static int hand_in(const Job *job, Part *last, Worker *worker) {
    last->pairs_start = worker->pairs.length;
    if (end_couples) end_couples(&sketch32);
    int bad = is_wide(job->tensor.dtype) ? take_sketch64(&worker->pairs, &sketch64)
                                         : take_sketch32(&worker->pairs, &sketch32);
    last->pairs_end = worker->pairs.length;
    return bad;
}

/* How many parts of a tensor can be counted before a bin might overflow. */
static int64_t most_parts(const Job *job) {
    int64_t elements_each = job->tensor.count / (job->chunks + job->tiles) + 1;
    return UINT32_MAX / elements_each / 2 + 1;
}

typedef void (*Body)(void *);
static void (*parallel)(Body, void *, unsigned, unsigned);
static int (*thread_number)(void);

static void find_threads(void) {
#if !defined(_WIN32)
    *(void **)&parallel = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    *(void **)&thread_number = dlsym(RTLD_DEFAULT, "omp_get_thread_num");
    if (thread_number == NULL) parallel = NULL;
#endif
}

/* The next of a thread's own tasks, then of the others'; `whose` counts these threads. */
static Task next_task(Queue *queue, int own, int *whose) {
    for (; *whose < queue->threads; ++*whose) {
        int thread = (own + *whose) % queue->threads;
        int64_t number = __atomic_fetch_add(&queue->next[thread], 1, __ATOMIC_RELAXED);
        if (number < queue->ends[thread]) return queue->tasks[number];
    }
    return (Task){NULL, 0, 0};
}

/* The place of the thread that calls. Its number may be that of another runtime, so it is only a wish. */
static int take_place(const Queue *queue) {
    int place = queue->threads > 1 ? thread_number() % queue->threads : 0;
    while (__atomic_exchange_n(&queue->workers[place].is_taken, 1, __ATOMIC_RELAXED)) place = (place + 1) % queue->threads;
    return place;
}

/* A tensor's sketch is handed in when the thread comes to another one: that costs more than to count some
 * thousand elements. */
static void drain(void *pointer) {
    Queue *queue = pointer;
    int own = take_place(queue), whose = 0;
    Worker *worker = &queue->workers[own];
    const Job *job = NULL;
    Part *last = NULL;
    int64_t counted = 0;
    sketch32.range = sketch64.range = EMPTY;
    for (;;) {
        Task task = next_task(queue, own, &whose);
        if (last && task.job != job) {
            worker->has_failed |= hand_in(job, last, worker);
            counted = 0;
        }
        if (task.job == NULL) return;
        job = task.job;
        for (int64_t part = task.first; part < task.end; part++, counted++) {
            if (counted >= most_parts(job)) {
                worker->has_failed |= hand_in(job, last, worker);
                counted = 0;
            }
            do_part(job, part, worker);
            last = &job->parts[part];
        }
    }
}

/* ---------------------------------------------------------------- from parts to rows */

static void note_moments(Row *row, const Job *job, const Moments *m) {
    row->count = job->tensor.count;
    row->zeros = m->zeros;
    row->nans = m->nans;
    row->infs = m->infs;
    row->has_finite = m->finite > 0;
    if (!m->finite) return;
    double n = (double)m->finite, variance = m->m2 / n;
    row->std = sqrt(variance) / job->scale;
    row->rms = sqrt(variance + m->mean * m->mean) / job->scale;
    row->mean = m->mean / job->scale;
    row->abs_mean = m->abs_sum / n / job->scale;
    row->min = m->min;
    row->max = m->max;
    row->abs_max = larger_magnitude(m);
}

/* How many units lack a flag. */
static int32_t count_lacking(const uint8_t *flags, int64_t units, uint8_t flag) {
    int32_t lacking = 0;
    for (int64_t i = 0; i < units; i++) lacking += !(flags[i] & flag);
    return lacking;
}

static void note_units(Row *row, const Job *job) {
    Spread spread = {0.0, 0};
    const Units *u = &job->units;
    for (int64_t i = 0; i < job->chunks + job->tiles; i++) {
        spread.sum += job->parts[i].spread.sum;
        spread.count += job->parts[i].spread.count;
    }
    row->has_units = 1;
    row->units = (int32_t)u->units;
    row->dead_units = count_lacking(u->flags, u->units, NOT_DEAD);
    row->constant_units = count_lacking(u->flags, u->units, NOT_CONSTANT);
    row->batch_std = spread.count ? spread.sum / (double)spread.count : NAN;
}

static Moments merge_parts(const Job *job) {
    Moments total;
    clear_moments(&total);
    for (int64_t i = 0; i < job->chunks + job->tiles; i++) merge_moments(&total, &job->parts[i].moments);
    return total;
}

static Stretch pairs_of(const Part *part) {
    return (Stretch){&part->worker->pairs, part->pairs_start, part->pairs_end};
}

static int merge_sketches(const Job *job, Pairs *pairs) {
    const Part *end = job->parts + job->chunks + job->tiles, *first = NULL, *last = NULL;
    int filled = 0;
    for (const Part *part = job->parts; part < end; part++) {
        if (part->pairs_start == part->pairs_end) continue;
        first = filled++ ? first : part;
        last = part;
    }
    if (filled == 0) return 0;
    if (filled == 1) return append_pairs(pairs, &first->worker->pairs, first->pairs_start, first->pairs_end);
    if (filled == 2 && job->tensor.count <= UINT32_MAX) return join_pairs(pairs, pairs_of(first), pairs_of(last));
    gathered.low = KEYS;
    gathered.high = -1;
    for (const Part *part = job->parts; part < end; part++)
        gather_pairs(&gathered, &part->worker->pairs, part->pairs_start, part->pairs_end);
    return take_gathered(pairs, &gathered);
}

static int is_extreme(const Job *job, const Moments *m) {
    double magnitude = larger_magnitude(m);
    return is_wide(job->tensor.dtype) && m->finite && magnitude > 0 && (magnitude > 0x1p500 || magnitude < 0x1p-400);
}

/* Sums once more what is too large or too small for its square. */
static void sum_scaled(Job *job, Moments *m) {
    Moments counts = *m;
    job->scale = larger_magnitude(m) > 1 ? 0x1p-540 : 0x1p540;
    for (int64_t c = 0; c < job->chunks; c++) do_scaled(job, c, &job->parts[c]);
    *m = merge_parts(job);
    m->zeros = counts.zeros;
    m->min = counts.min;
    m->max = counts.max;
}

static int finish_job(Job *job, Pairs *pairs) {
    Moments m = merge_parts(job);
    if (merge_sketches(job, pairs)) return -1;
    if (is_extreme(job, &m)) sum_scaled(job, &m);
    note_moments(&job->row, job, &m);
    if (job->units.flags) note_units(&job->row, job);
    return 0;
}

/* The number of a tensor that was digested; 0 where it has gaps. */
static uint64_t digest_of(const Job *job) {
    size_t size = (size_t)job->tensor.count * (size_t)DTYPE_BYTES[job->tensor.dtype];
    if (!job->ordered.is_dense || size == 0) return 0;
    Digest total = {{0}, {0}};
    for (int64_t chunk = 0; chunk < job->chunks; chunk++) {
        int64_t elements = chunk_end(&job->ordered, chunk) - chunk * CHUNK;
        join_digest(&total, &job->parts[chunk].digest, (uint64_t)(elements * DTYPE_BYTES[job->tensor.dtype] / LINE));
    }
    return digest_number(&total, job->ordered.data, size);
}

/* ---------------------------------------------------------------- all of it */

typedef struct {
    Job *jobs;
    int64_t length, most_tasks;
    Part *parts;
    Queue queue;
    int threads;
    Worker workers[MAX_WORKERS];
    Task few_tasks[FEW]; /* enough for most single tensors, so that they need no memory */
    Part few_parts[FEW];
} Crew;

static int64_t elements_in(const Job *jobs, int64_t length) {
    int64_t count = 0;
    for (int64_t i = 0; i < length; i++) count += jobs[i].tensor.count;
    return count;
}

static int64_t parts_of(int64_t whole, int64_t part) { return whole > part ? (whole + part - 1) / part : 1; }

static int prepare_job(Job *job, int is_streamed) {
    job->is_streamed = is_streamed;
    job->ordered = job->tensor;
    order_dims(&job->ordered);
    join_dims(&job->ordered);
    job->chunks = parts_of(job->tensor.count, CHUNK);
    job->tiles = 0;
    job->scale = 1.0;
    if (!has_units(&job->tensor, job->unit_dim)) return 0;
    if (prepare_units(&job->units, &job->tensor, job->unit_dim, CHUNK)) return -1;
    job->tiles = parts_of(job->units.positions, job->units.per_task);
    if (!is_wide(job->tensor.dtype)) job->chunks = 0;
    return 0;
}

/* The first part of a tensor that is a thread's: as torch shares it out, so that each finds in its cache what it
 * worked on itself. */
static int64_t share_of(const Job *job, int64_t grain, int thread, int threads) {
    int64_t parts = job->chunks + job->tiles;
    return job->tensor.count > grain ? (parts * thread + threads - 1) / threads : thread ? parts : 0;
}

static int64_t grain_of(int64_t length) { return length == 1 ? GRAIN_ALONE : GRAIN; }

static void share_out(Crew *crew, int threads) {
    Queue *queue = &crew->queue;
    int64_t grain = grain_of(crew->length);
    for (int thread = 0; thread < threads; thread++) {
        queue->next[thread] = queue->length;
        for (Job *job = crew->jobs; job < crew->jobs + crew->length; job++) {
            int64_t first = share_of(job, grain, thread, threads), end = share_of(job, grain, thread + 1, threads);
            int64_t run = threads > 1 ? MOST_AT_A_TIME : end - first;
            for (; first < end; first += run)
                queue->tasks[queue->length++] = (Task){job, first, first + run < end ? first + run : end};
        }
        queue->ends[thread] = queue->length;
    }
}

static int prepare_tasks(Crew *crew, Job *jobs, int64_t length) {
    int64_t parts = 0;
    int is_streamed = has_avx2 && elements_in(jobs, length) > LARGE;
    crew->jobs = jobs;
    crew->length = length;
    crew->threads = 0;
    crew->queue = (Queue){.tasks = crew->few_tasks, .workers = crew->workers};
    crew->parts = crew->few_parts;
    for (Job *job = jobs; job < jobs + length; job++) {
        if (prepare_job(job, is_streamed)) return -1;
        parts += job->chunks + job->tiles;
    }
    crew->most_tasks = parts;
    if (parts > FEW) {
        crew->queue.tasks = malloc((size_t)parts * sizeof(Task));
        crew->parts = malloc((size_t)parts * sizeof(Part));
    }
    if (crew->queue.tasks == NULL || crew->parts == NULL) return -1;
    Part *next = crew->parts;
    for (Job *job = jobs; job < jobs + length; job++) {
        job->parts = next;
        next += job->chunks + job->tiles;
    }
    return 0;
}

static void prepare_workers(Crew *crew, int threads) {
    if (threads > 1 && parallel == NULL) find_threads();
    if (threads > MAX_WORKERS) threads = MAX_WORKERS;
    if (threads > crew->most_tasks) threads = (int)crew->most_tasks;
    crew->threads = crew->queue.threads = threads > 1 && parallel != NULL ? threads : 1;
    share_out(crew, crew->threads);
    memset(crew->workers, 0, (size_t)crew->threads * sizeof *crew->workers);
}

static int work(Crew *crew) {
    if (crew->threads > 1) parallel(drain, &crew->queue, (unsigned)crew->threads, 0);
    else drain(&crew->queue);
    int has_failed = 0;
    for (int w = 0; w < crew->threads; w++) has_failed |= crew->workers[w].has_failed;
    return has_failed;
}

static void dismiss(Crew *crew) {
    for (Job *job = crew->jobs; job < crew->jobs + crew->length; job++) free(job->units.flags);
    for (int w = 0; w < crew->threads; w++) free_pairs(&crew->workers[w].pairs);
    if (crew->queue.tasks != crew->few_tasks) free(crew->queue.tasks);
    if (crew->parts != crew->few_parts) free(crew->parts);
}

#endif
