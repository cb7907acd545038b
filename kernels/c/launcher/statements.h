// SPDX-License-Identifier: Apache-2.0
// launcher/statements.h — a statement by itself: its leaves, their overlap with the target, its recipe followed
#ifndef TB_LAUNCHER_STATEMENTS_H
#define TB_LAUNCHER_STATEMENTS_H

#include "memo.h"

// The leaves of a value, its nodes and the places of these, and where parts are used again: as `walk` of graph/fuse.py
// finds them.
typedef struct walked {
    object *leaf[MOST_LEAVES], *node[MOST_NODES];
    enum kind kind[MOST_LEAVES];
    int32_t place[MOST_NODES], repeats[2 * MOST_REPEATS];
    int leaves, nodes, n_repeats;
} walked;

static inline int add_leaf(walked *w, object *x, enum kind kind) {
    if (w->leaves == MOST_LEAVES)
        return 0;
    w->kind[w->leaves] = kind;
    w->leaf[w->leaves++] = x;
    return 1;
}

// As many as there may be parts: they fit.
static inline void add_node(walked *w, object *x, int32_t place) {
    w->place[w->nodes] = place;
    w->node[w->nodes++] = x;
}

// 0 for a tree too large for the memory set aside, or with an operand that is not understood.
static int walk(walked *w, object *root, enum kind root_kind) {
    object *stack[MOST_LEAVES], *seen[MOST_NODES];
    int32_t first[MOST_NODES];
    int depth = 1, n_seen = 1;
    int32_t count = 0;
    w->leaves = w->nodes = w->n_repeats = 0;
    if (root_kind != NODE && root_kind != PLAIN_NODE)
        return add_leaf(w, root, root_kind);
    stack[0] = seen[0] = root;
    first[0] = 0;
    add_node(w, root, 0);
    while (depth) {
        object *node = stack[--depth];
        int native = node->type == node_type;
        object *inputs = native ? NULL : slot(node, at.node_inputs);
        length n = native ? extra_of(node)->count : PyTuple_Size(inputs);
        if (n < 0)
            PyErr_Clear();
        if (n < 0 || (n == 0 && !add_leaf(w, node, PLAIN_NODE)))
            return 0;
        for (length i = 0; i < n; i++) {
            object *x = native ? extra_of(node)->operand[i] : PyTuple_GetItem(inputs, i);
            enum kind kind = kind_of(x);
            count++;
            if (kind == NUMBER) {
                if (!add_leaf(w, x, kind))
                    return 0;
                continue;
            }
            int k = 0;
            while (k < n_seen && seen[k] != x)
                k++;
            if (k < n_seen) {
                if (w->n_repeats == MOST_REPEATS)
                    return 0;
                w->repeats[2 * w->n_repeats] = count;
                w->repeats[2 * w->n_repeats++ + 1] = first[k];
                continue;
            }
            if (n_seen == MOST_NODES || depth == MOST_LEAVES || kind == FOREIGN)
                return 0;
            seen[n_seen] = x;
            first[n_seen++] = count;
            if (kind == TENSOR) {
                if (!add_leaf(w, x, kind))
                    return 0;
            } else {
                stack[depth++] = x;
                add_node(w, x, count);
            }
        }
    }
    return 1;
}

typedef struct span { int64_t address, start, stop; } span;

// A tensor's place in memory, which is kept in its slot `span` as bytes. NULL when it is no place of this process.
static const span *new_span(object *tensor) {
    object *found = slot(tensor, at.tensor_span);
    const length parts[3] = {at.tensor_address, at.tensor_start, at.tensor_stop};
    int64_t values[3];
    for (int i = 0; i < 3; i++)
        values[i] = PyLong_AsLongLong(slot(tensor, parts[i]));
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return NULL;
    }
    object *made = PyBytes_FromStringAndSize((const char *)values, sizeof values);
    if (!made) {
        PyErr_Clear();
        return NULL;
    }
    *field(tensor, at.tensor_span) = made;
    drop(found);
    return data_of(made);
}

static inline const span *span_of(object *tensor) {
    object *found = slot(tensor, at.tensor_span);
    return found && found->type == py.bytes ? data_of(found) : new_span(tensor);
}

// Whether two views have memory in common, as Python's `share_memory` says.
static int share_memory(const span *x, object *x_structure, const span *y, object *y_structure) {
    if (x->start >= y->stop || y->start >= x->stop)
        return 0;
    object *combs[2] = {slot(x_structure, at.structure_combs), slot(y_structure, at.structure_combs)};
    const int64_t *pairs[2] = {data_of(combs[0]), data_of(combs[1])};
    const length count[2] = {PyBytes_Size(combs[0]) / 16, PyBytes_Size(combs[1]) / 16};
    int64_t distance = y->start - x->start;
    for (length i = 0; i < count[0]; i++)
        for (length k = 0; k < count[1]; k++) {
            int64_t period = pairs[0][2 * i], width = pairs[0][2 * i + 1];
            if (period != pairs[1][2 * k])
                continue;
            int64_t at_tooth = distance % period + (distance % period < 0 ? period : 0);
            if (width <= at_tooth && at_tooth <= period - pairs[1][2 * k + 1])
                return 0;
        }
    return 1;
}

// -1 when some place is not known; else as `Statement.overlap` of graph/fuse.py. Fills in the places of the leaves.
static int overlap_of(const walked *w, object *target, const span *to, span *places) {
    int overlap = 0;
    for (int i = 0; i < w->leaves; i++) {
        if (w->kind[i] != TENSOR)
            continue;
        const span *from = span_of(w->leaf[i]);
        if (!from)
            return -1;
        places[i] = *from;
        object *structure = slot(w->leaf[i], at.tensor_structure), *written = slot(target, at.tensor_structure);
        if (share_memory(from, structure, to, written)) {
            int same = from->address == to->address && structure == written;
            overlap = overlap > 2 - same ? overlap : 2 - same;
        }
    }
    return overlap;
}

// Operands of a recipe: the leaves, where those that are tensors begin, where the targets begin.
typedef struct operands {
    object *const *leaf;
    const span *place, *target;
} operands;

// A recipe's words: a head, then for each launch its address and counts, then (source, offset) for each pointer and
// (leaf, format, least, most) for each scalar. A source is a leaf, the arena, or TARGET - k for target k. `check` is
// where in the arena the first `checked` launches leave a word that is not 0 if they refuse operands (-1: they do not):
// Python says so. `draws` random leaves are numbered from the second word at `generator` on, whose first is the key;
// `least` says which.
enum { ARENA = -1, TARGET = -2, FORMAT_FLOAT = 0, FORMAT_DOUBLE, FORMAT_INTEGER, FORMAT_DRAW, FORMAT_KEY };
enum { MOST_LAUNCHES = 256, MOST_POINTERS = 1024, MOST_SCALARS = 64 };
typedef struct { int64_t launches, arena_bytes, cost, check, checked, generator, draws; } recipe_head;
typedef struct { int64_t launch, pointers, scalars; } recipe_launch;
typedef struct { int64_t source, offset; } recipe_pointer;
typedef struct { int64_t leaf, format, least, most; } recipe_scalar;

static const int64_t KEEP_LOCK_BELOW_NS = 20000;

typedef struct packed {
    tb_launch launch[MOST_LAUNCHES];
    void *pointer[MOST_POINTERS];
    int64_t scalar[MOST_SCALARS];
    int drawn, given;  // how many scalars are next numbers of the generator, and numbers that random leaves have
} packed;

static int number_to_word(const recipe_scalar *s, object *x, int64_t *word) {
    if (s->format == FORMAT_INTEGER) {
        int over;
        *word = PyLong_AsLongLongAndOverflow(x, &over);
        return !over && *word >= s->least && *word <= s->most;
    }
    double value = PyFloat_AsDouble(x);
    if (value == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    if (s->format == FORMAT_FLOAT)
        value = (double)(float)value;
    memcpy(word, &value, sizeof *word);
    return 1;
}

// A random leaf's number, its own or one of the next, or the key.
static int draw_to_word(packed *p, const recipe_scalar *s, const int64_t *generator, object *const *leaf,
                        int64_t *word) {
    if (s->format == FORMAT_KEY) {
        *word = generator[0];
        return 1;
    }
    object *own = slot(leaf[s->leaf], at.node_draw);
    if (!own || own == py.none) {
        *word = generator[1] + s->least;
        p->drawn++;
        return 1;
    }
    int over;
    *word = PyLong_AsLongLongAndOverflow(own, &over);
    p->given++;
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return !over;
}

// 0 when a number does not fit, or only some random leaves have numbers: Python then sees to it.
static int pack(packed *p, const int64_t *words, const operands *o, char *arena) {
    const recipe_head *head = (const recipe_head *)words;
    const int64_t *generator = (const int64_t *)(uintptr_t)head->generator;
    words = (const int64_t *)(head + 1);
    void **pointer = p->pointer;
    int64_t *scalar = p->scalar;
    p->drawn = p->given = 0;
    for (int64_t i = 0; i < head->launches; i++) {
        const recipe_launch *r = (const recipe_launch *)words;
        const recipe_pointer *from = (const recipe_pointer *)(r + 1);
        const recipe_scalar *number = (const recipe_scalar *)(from + r->pointers);
        p->launch[i] = *(const tb_launch *)(uintptr_t)r->launch;
        p->launch[i].ptr = pointer;
        p->launch[i].scalar = scalar;
        for (int64_t k = 0; k < r->pointers; k++, from++) {
            char *base = from->source >= 0      ? (char *)(uintptr_t)o->place[from->source].address
                         : from->source == ARENA ? arena
                                                 : (char *)(uintptr_t)o->target[TARGET - from->source].address;
            *pointer++ = base + from->offset;
        }
        for (int64_t k = 0; k < r->scalars; k++, number++, scalar++)
            if (!(number->format >= FORMAT_DRAW ? draw_to_word(p, number, generator, o->leaf, scalar)
                                                : number_to_word(number, o->leaf[number->leaf], scalar)))
                return 0;
        words = (const int64_t *)number;
    }
    return !p->drawn || !p->given;
}

enum outcome { FAILED = -1, TO_PYTHON, DONE, UNKNOWN };

// All launches; those behind the ones that may refuse only if they do not. 0 if they do: they have written nothing.
static int run_list(const packed *p, const recipe_head *head, const char *arena) {
    const int64_t first = head->check >= 0 ? head->checked : head->launches;
    runtime.run_list(p->launch, first);
    if (head->check >= 0 && *(const int64_t *)(arena + head->check))
        return 0;
    if (first < head->launches)
        runtime.run_list(p->launch + first, head->launches - first);
    return 1;
}

// Without the interpreter lock, with the backend's. While that is waited for, the recipe may be forgotten, and what it
// launches be gone with the backend.
static enum outcome run_long(memo *m, const packed *p, const recipe_head *head, const char *arena,
                             long long forgotten) {
    object *locked = memo_acquire(&m->head, NULL);
    if (!locked)
        return FAILED;
    Py_DecRef(locked);
    int ran = 0;
    if (m->forgotten == forgotten) {
        void *state = PyEval_SaveThread();
        ran = run_list(p, head, arena);
        PyEval_RestoreThread(state);
    }
    object *released = memo_release(&m->head, NULL);
    drop(released);
    return !released ? FAILED : ran ? DONE : TO_PYTHON;
}

// Packs a recipe that draws, with the backend's lock: each draw has a number of its own.
static enum outcome pack_draws(memo *m, packed *p, const int64_t *words, const operands *o, char *arena) {
    const recipe_head *head = (const recipe_head *)words;
    object *locked = memo_acquire(&m->head, NULL);
    if (!locked)
        return FAILED;
    Py_DecRef(locked);
    int packs = pack(p, words, o, arena);
    if (packs && p->drawn)
        ((int64_t *)(uintptr_t)head->generator)[1] += head->draws;
    object *released = memo_release(&m->head, NULL);
    drop(released);
    return !released ? FAILED : packs ? DONE : TO_PYTHON;
}

// Runs a recipe, unless the memo forgets it while it waits: then Python sees to it. The caller holds the targets and the
// values, and with them all leaves.
static enum outcome follow(memo *m, object *recipe, const operands *o) {
    packed p;
    const long long forgotten = m->forgotten;
    Py_IncRef(recipe);
    Py_IncRef(&m->head);
    const int64_t *words = data_of(PyTuple_GetItem(recipe, 0));
    const recipe_head head = *(const recipe_head *)words;
    char *arena = head.arena_bytes ? runtime.alloc(head.arena_bytes) : NULL;
    enum outcome outcome = TO_PYTHON;
    if (arena || !head.arena_bytes)
        outcome = head.draws ? pack_draws(m, &p, words, o, arena) : pack(&p, words, o, arena) ? DONE : TO_PYTHON;
    if (outcome == DONE && m->forgotten != forgotten)
        outcome = TO_PYTHON;
    if (outcome == DONE) {
        m->hits++;
        if (head.cost < KEEP_LOCK_BELOW_NS && !*m->held)
            outcome = run_list(&p, &head, arena) ? DONE : TO_PYTHON;
        else
            outcome = run_long(m, &p, &head, arena, forgotten);
    }
    if (arena)
        runtime.free(arena, head.arena_bytes);
    Py_DecRef(&m->head);
    Py_DecRef(recipe);
    return outcome;
}

// Whether the target may be written at all without Python's looking at it: see Backend._assign.
static inline int is_plain_target(object *target) {
    object *storage = slot(target, at.tensor_storage), *rounding = slot(target, at.tensor_rounding);
    return storage && storage->type == py.storage_class && slot(storage, at.storage_writable) == py.true_ &&
           (rounding == py.zero || rounding == py.false_);
}

// A statement as native code sees it.
typedef struct stated {
    object *target, *value, *root;  // root: the value's structure or number type
    walked w;
    span to, place[MOST_LEAVES];
    int overlap;
} stated;

// 0 when only Python can run it.
static int examine(stated *s, object *target, object *value) {
    enum kind kind = kind_of(value);
    if (kind == FOREIGN || !is_plain_target(target))
        return 0;
    const span *to = span_of(target);
    if (!to || !walk(&s->w, value, kind))
        return 0;
    s->target = target;
    s->value = value;
    s->to = *to;
    s->overlap = overlap_of(&s->w, target, to, s->place);
    s->root = key_of(value);
    return s->overlap >= 0 && s->root;
}

// Runs a statement if it is known. If not, `key` is what to remember it by (its repeats are those of `s`).
static enum outcome run_known(memo *m, const stated *s, statement *key) {
    object *structure = slot(s->target, at.tensor_structure);
    *key = (statement){structure, s->root, (int32_t *)s->w.repeats, s->w.n_repeats, s->overlap, NULL};
    if (!m->n_statements)
        return UNKNOWN;
    object *recipe = find_statement(m->statements, m->statement_places, key)->recipe;
    if (!recipe)
        return UNKNOWN;
    if (recipe == py.none)
        return TO_PYTHON;
    const operands o = {s->w.leaf, s->place, &s->to};
    return follow(m, recipe, &o);
}

// Python runs it for the first time, and says how to run it again: a recipe, None when only Python can, NotImplemented
// when it is not to be remembered.
static int run_first(object *target, object *value, const statement *key, memo *m) {
    Py_IncRef(&m->head);
    Py_IncRef(key->target);
    Py_IncRef(key->root);
    const long long forgotten = m->forgotten;
    object *recipe = PyObject_CallFunctionObjArgs(py.learn, target, value, NULL);
    if (recipe && recipe != py.not_implemented && m->forgotten == forgotten)
        remember_statement(m, key, recipe);
    drop(recipe);
    Py_DecRef(key->root);
    Py_DecRef(key->target);
    Py_DecRef(&m->head);
    return recipe ? 0 : -1;
}

#endif
