// The handler that XLA calls: it compares the buffers of a call with the description of the kernel,
// looks through the index arrays, and runs the passes, each on as many of XLA's threads as it is
// worth. `python scripts/runtime_ir.py` makes runtime.ll of this file, which is what users run.

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "xla/ffi/api/c_api.h"

// vector operations that are worth waking a thread for: about ten microseconds
enum { WORK_OF_A_THREAD = 30000 };
// bytes of results worth large pages, and bytes of a large page
enum { LARGE = 1 << 22, LARGE_PAGE = 1 << 21 };

// What `KernelPasses.module` of text.py writes about a kernel, with the codes that it has there.
enum { DATA, NODE_INDEX, ROW_INDEX, OFFSETS, SENDER_INDEX };      // the role of an array
enum { ROWS, NODES, NODES_AND_ONE, SENDERS, SENDERS_AND_ONE };   // what its rows are; -n where they are n
typedef struct { int64_t dtype, rank, rows, width, role; const char* name; } Entry;
typedef void Run(void** buffers, int64_t begin, int64_t end, int64_t rows, void* scratch);
// units of `block` rows, of which a node has -block where it is negative; `count` where it is known;
// whether nodes are those that send
typedef struct { Run* run; int64_t block, row_cost, node_cost, scratch, count, of_senders; } Pass;
// an order of edges, the ends that it sorts, and the offsets of nodes in it: numbers of entries
typedef struct { int64_t order, ends, offsets; } Order;
typedef struct {
  int64_t inputs, outputs, passes;
  const Entry* entry;
  const Pass* pass;
  int64_t orders;
  const Order* order;
} Spec;

int64_t eqfuse_limit = 1;           // the most threads that kernels of this process use
_Atomic int64_t eqfuse_active = 0;  // how many they do
int eqfuse_advice = 14;             // for large results: MADV_HUGEPAGE of Linux; 0: none
int eqfuse_version[2] = {XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};

// A pass that runs, of which threads take chunks; the last one that has it frees it.
typedef struct {
  _Atomic int64_t references, next, done, failed;
  int64_t count, chunk, rows, scratch;
  Run* run;
  void** buffers;
} Job;

static void work(Job* job) {
  void* memory = malloc(job->scratch + 64);
  void* scratch = (void*)(((intptr_t)memory + 63) & -64);
  int64_t first;
  while ((first = atomic_fetch_add(&job->next, job->chunk)) < job->count) {
    int64_t last = first + job->chunk < job->count ? first + job->chunk : job->count;
    if (memory)
      job->run(job->buffers, first, last, job->rows, scratch);
    else
      atomic_fetch_add(&job->failed, 1);
    atomic_fetch_add(&job->done, last - first);
  }
  free(memory);
}

static void release(Job* job) {
  if (atomic_fetch_sub(&job->references, 1) == 1) free(job);
}

// What a thread of XLA's pool does; it may come when the work is done.
static void help(void* data) {
  Job* job = data;
  int is_allowed = atomic_fetch_add(&eqfuse_active, 1) < eqfuse_limit;
  if (is_allowed && job->next < job->count) work(job);
  atomic_fetch_sub(&eqfuse_active, 1);
  release(job);
}

static int is_error(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  if (!error) return 0;
  XLA_FFI_Error_Destroy_Args args = {sizeof args, NULL, error};
  api->XLA_FFI_Error_Destroy(&args);
  return 1;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Share out `count` units; return how many chunks failed for want of memory.
static int64_t share(const XLA_FFI_CallFrame* frame, Run* run, void** buffers, int64_t count,
                     int64_t rows, int64_t scratch, int64_t cost) {
  const XLA_FFI_Api* api = frame->api;
  int64_t helpers = least(least(eqfuse_limit, count) - 1, cost / WORK_OF_A_THREAD);
  if (helpers > 0) {
    int64_t threads = 0;
    XLA_FFI_ThreadPool_NumThreads_Args args = {sizeof args, NULL, frame->ctx, &threads};
    if (is_error(api, api->XLA_FFI_ThreadPool_NumThreads(&args))) threads = 0;
    helpers = least(helpers, threads);
  }
  if (helpers < 0) helpers = 0;

  Job* job = malloc(sizeof *job);
  if (!job) return 1;
  int64_t parts = 8 * (helpers + 1);
  *job = (Job){.references = helpers + 1, .count = count, .chunk = (count + parts - 1) / parts,
               .rows = rows, .scratch = scratch, .run = run, .buffers = buffers};
  for (int64_t k = 0; k < helpers; k++) {
    XLA_FFI_ThreadPool_Schedule_Args args = {sizeof args, NULL, frame->ctx, help, job};
    if (is_error(api, api->XLA_FFI_ThreadPool_Schedule(&args)))
      atomic_fetch_sub(&job->references, 1);
  }
  atomic_fetch_add(&eqfuse_active, 1);
  work(job);
  while (job->done < count) sched_yield();
  atomic_fetch_sub(&eqfuse_active, 1);
  int64_t failures = job->failed;
  release(job);
  return failures;
}

// Return an error from the function: variable arguments are words, which any machine passes alike.
#define FAIL(code, ...)                                                                     \
  do {                                                                                      \
    char text[512];                                                                         \
    snprintf(text, sizeof text, "eqfuse: " __VA_ARGS__);                                    \
    XLA_FFI_Error_Create_Args args = {sizeof args, NULL, text, XLA_FFI_Error_Code_##code};  \
    return frame->api->XLA_FFI_Error_Create(&args);                                         \
  } while (0)

// How many rows, nodes that receive, and nodes that send a call has; -1 for what no array says.
typedef struct { int64_t rows, nodes, senders; } Counts;

static XLA_FFI_Error* check_buffer(const XLA_FFI_CallFrame* frame, const Entry* e,
                                   const XLA_FFI_Buffer* b, Counts* counts) {
  int64_t dtype = b->dtype, rank = b->rank;
  if (dtype != e->dtype)
    FAIL(INVALID_ARGUMENT, "%s must be of type %ld, got %ld", e->name, e->dtype, dtype);
  if (rank != e->rank)
    FAIL(INVALID_ARGUMENT, "%s must be of rank %ld, got %ld", e->name, e->rank, rank);
  if (rank == 2 && b->dims[1] != e->width)
    FAIL(INVALID_ARGUMENT, "%s must have %ld columns, got %ld", e->name, e->width, b->dims[1]);
  int64_t more = e->rows == NODES_AND_ONE || e->rows == SENDERS_AND_ONE, length = b->dims[0] - more;
  int64_t* known = e->rows == ROWS ? &counts->rows : e->rows < SENDERS ? &counts->nodes : &counts->senders;
  if (e->rows >= 0 && *known < 0) *known = length;
  int64_t expected = e->rows < 0 ? -e->rows : *known;
  if (length != expected)
    FAIL(INVALID_ARGUMENT, "%s must have %ld rows, got %ld", e->name, expected + more, b->dims[0]);
  return NULL;
}

// What a check of index arrays looks through, shared among threads as a pass is.
typedef struct {
  const int32_t *index, *ends, *offsets;
  int64_t limit;
  _Atomic int64_t is_wrong;
} Check;

static void in_range(void** check, int64_t begin, int64_t end, int64_t rows, void* scratch) {
  (void)rows, (void)scratch;
  Check* c = (Check*)check;
  const int32_t* index = c->index;
  uint32_t limit = c->limit, wrong = 0;
  for (int64_t k = begin; k < end; k++) wrong |= (uint32_t)index[k] >= limit;
  if (wrong) c->is_wrong = 1;
}

// The edges of a node are those of which it is the end, in ever higher numbers: so an order that
// passes is a permutation. Its elements are in range.
static void in_order(void** check, int64_t begin, int64_t end, int64_t rows, void* scratch) {
  (void)rows, (void)scratch;
  Check* c = (Check*)check;
  int wrong = 0;
  for (int64_t node = begin; node < end && !wrong; node++) {
    int64_t first = c->offsets[node], stop = c->offsets[node + 1], before = -1;
    wrong = first < 0 || stop < first || stop > c->limit;
    if (wrong) break;
    for (int64_t k = first; k < stop; k++) {
      int64_t edge = c->index[k];
      wrong |= c->ends[edge] != node || edge <= before;
      before = edge;
    }
  }
  if (wrong) c->is_wrong = 1;
}

static int fails(const XLA_FFI_CallFrame* frame, Run* run, Check* c, int64_t count, int64_t cost) {
  if (cost < 2 * WORK_OF_A_THREAD)
    run((void**)c, 0, count, 0, NULL);
  else if (share(frame, run, (void**)c, count, 0, 0, cost))
    return 1;
  return c->is_wrong != 0;
}

// An array of a size of its own says how many rows it has, and where its indices or offsets end; of
// the others, those of senders do so where senders are nodes of their own.
static void use_own_size(const Entry* e, int64_t* rows, int64_t* nodes, int64_t senders) {
  int is_of_senders = e->role == SENDER_INDEX || e->rows == SENDERS_AND_ONE;
  if (e->rows >= 0 && is_of_senders && senders >= 0) *nodes = senders;
  if (e->rows >= 0) return;
  *rows = e->role == OFFSETS ? e->width : -e->rows;
  *nodes = e->role == OFFSETS ? -e->rows - 1 : e->width;
}

// Find the error: indices are in range, orders permutations, offsets in order over all rows.
static XLA_FFI_Error* check_indices(const XLA_FFI_CallFrame* frame, const Entry* e,
                                    const int32_t* item, int64_t rows, int64_t nodes) {
  if (e->role == NODE_INDEX || e->role == SENDER_INDEX || e->role == ROW_INDEX) {
    int64_t limit = e->role == ROW_INDEX ? rows : nodes;
    for (int64_t k = 0; k < rows; k++) {
      int64_t value = item[k];
      if ((uint64_t)value >= (uint64_t)limit)
        FAIL(OUT_OF_RANGE, "%s[%ld] is %ld, outside [0, %ld)", e->name, k, value, limit);
    }
  }
  if (e->role == ROW_INDEX) {
    char* seen = calloc(rows, 1);
    if (!seen) FAIL(RESOURCE_EXHAUSTED, "no memory for %ld bytes of scratch", rows);
    for (int64_t k = 0; k < rows; k++) {
      int64_t value = item[k];
      if (seen[value]) {
        free(seen);
        FAIL(INVALID_ARGUMENT, "%s must be a permutation, and holds %ld twice", e->name, value);
      }
      seen[value] = 1;
    }
    free(seen);
  }
  if (e->role == OFFSETS)
    for (int64_t k = 0, value = 0; k <= nodes; k++) {
      int64_t low = k == nodes ? rows : value, high = k ? rows : 0;
      value = item[k];
      if (value < low || value > high)
        FAIL(OUT_OF_RANGE,
             "%s[%ld] is %ld, not in [%ld, %ld]: indices of edges must be in [0, %ld)", e->name, k,
             value, low, high, nodes);
    }
  return NULL;
}

static XLA_FFI_Error* check_ends(const XLA_FFI_CallFrame* frame, const Entry* e,
                                 const int32_t* index, Counts counts) {
  if (e->role != NODE_INDEX && e->role != SENDER_INDEX) return NULL;
  int64_t rows = counts.rows, nodes = counts.nodes;
  use_own_size(e, &rows, &nodes, counts.senders);
  Check c = {.index = index, .limit = nodes};
  if (!fails(frame, in_range, &c, rows, rows / 8)) return NULL;
  return check_indices(frame, e, index, rows, nodes);
}

static XLA_FFI_Error* check_order(const XLA_FFI_CallFrame* frame, const Entry* entry,
                                  const Order* o, void** buffers, Counts counts) {
  const int32_t *order = buffers[o->order], *ends = buffers[o->ends];
  const int32_t* offsets = buffers[o->offsets];
  int64_t rows = counts.rows, nodes = counts.nodes, own_rows = counts.rows;
  use_own_size(entry + o->order, &rows, &nodes, counts.senders);
  use_own_size(entry + o->offsets, &own_rows, &nodes, counts.senders);
  Check c = {.index = order, .ends = ends, .offsets = offsets, .limit = rows};
  if (!fails(frame, in_range, &c, rows, rows / 8) &&
      !fails(frame, in_order, &c, nodes, (rows + nodes) / 2) && offsets[0] == 0 &&
      offsets[nodes] == rows)
    return NULL;
  XLA_FFI_Error* error = check_indices(frame, entry + o->offsets, offsets, rows, nodes);
  if (!error) error = check_indices(frame, entry + o->order, order, rows, nodes);
  for (int64_t node = 0; !error && node < nodes; node++)
    for (int64_t k = offsets[node]; k < offsets[node + 1]; k++) {
      int64_t edge = order[k], end = ends[edge];
      if (end != node)
        FAIL(INVALID_ARGUMENT,
             "%s[%ld] is %ld, and %s[%ld] is %ld, not %ld: make edges by Edges.from_arrays",
             entry[o->order].name, k, edge, entry[o->ends].name, edge, end, node);
    }
  return error;
}

// Ask Linux for large pages inside a large result, which it may decline.
// A large result is often in new memory, and mapping small pages takes half the time.
static void ask_for_large_pages(const XLA_FFI_Buffer* b) {
  int64_t size = b->dims[0] * b->dims[1] * (b->dtype == XLA_FFI_DataType_F64 ? 8 : 4);
  if (size < LARGE || !eqfuse_advice) return;
  int64_t start = (int64_t)b->data, first = (start + LARGE_PAGE - 1) & -LARGE_PAGE;
  madvise((void*)first, (start + size - first) & -LARGE_PAGE, eqfuse_advice);
}

XLA_FFI_Error* eqfuse_call(XLA_FFI_CallFrame* frame, const Spec* spec) {
  XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (extension && extension->type == XLA_FFI_Extension_Metadata) {  // XLA asks for the version
    XLA_FFI_Metadata* metadata = ((XLA_FFI_Metadata_Extension*)extension)->metadata;
    metadata->api_version.major_version = eqfuse_version[0];
    metadata->api_version.minor_version = eqfuse_version[1];
    return NULL;
  }
  int64_t counts[] = {spec->inputs, spec->outputs}, given[] = {frame->args.size, frame->rets.size};
  void** sides[] = {frame->args.args, frame->rets.rets};
  void* buffers[counts[0] + counts[1]];
  Counts sizes = {-1, -1, -1};
  int64_t n = 0;
  XLA_FFI_Error* error;
  for (int side = 0; side < 2; side++) {
    if (given[side] != counts[side])
      FAIL(INVALID_ARGUMENT, "expected %ld %s, got %ld", counts[side],
           side ? "results" : "arguments", given[side]);
    for (int64_t k = 0; k < counts[side]; k++, n++) {
      XLA_FFI_Buffer* b = sides[side][k];
      if ((error = check_buffer(frame, spec->entry + n, b, &sizes))) return error;
      buffers[n] = b->data;
    }
  }
  for (int64_t k = 0; k < counts[0]; k++)
    if ((error = check_ends(frame, spec->entry + k, buffers[k], sizes))) return error;
  for (int64_t k = 0; k < spec->orders; k++)
    if ((error = check_order(frame, spec->entry, spec->order + k, buffers, sizes)))
      return error;
  for (int64_t k = 0; k < counts[1]; k++) ask_for_large_pages(sides[1][k]);
  for (int64_t k = 0; k < spec->passes; k++) {
    const Pass* pass = spec->pass + k;
    int by_node = pass->block < 0;
    int64_t rows = sizes.rows, nodes = pass->of_senders ? sizes.senders : sizes.nodes;
    int64_t count = by_node ? -nodes * pass->block : (rows + pass->block - 1) / pass->block;
    if (pass->count > 0) count = pass->count;
    // where a call has no rows, the cost is that of the whole pass
    int64_t cost = pass->row_cost * (rows < 0 ? 1 : rows) + (by_node ? pass->node_cost * nodes : 0);
    int64_t size = pass->count > 0 && by_node ? nodes : rows;
    if (share(frame, pass->run, buffers, count, size, pass->scratch, cost))
      FAIL(RESOURCE_EXHAUSTED, "no memory for %ld bytes of scratch", pass->scratch);
  }
  return NULL;
}
