// SPDX-License-Identifier: Apache-2.0
// launcher/memo.h — what a backend's table remembers: structures of nodes, recipes of statements and calls, groups
#ifndef TB_LAUNCHER_MEMO_H
#define TB_LAUNCHER_MEMO_H

#include "nodes.h"

// States of groups are numbers from 1 on, or:
enum { EMPTY = 0, UNTRACKED = -1, APART = -2 };
enum { KEY_STATE, KEY_TARGET, KEY_ROOT, KEY_OVERLAP, KEY_REPEATS, KEY_SHARED, KEY_HEAD };
enum { FIRST_SIZE = 64, MOST_STRUCTURES = 1 << 16, MOST_STATEMENTS = 1 << 13, MOST_LEAVES = 64,
       MOST_NODES = 128, MOST_REPEATS = 32 };

typedef struct known {
    object *key[OPERANDS + 1];  // the op, and a structure or type for each operand
    object *result;
} known;

typedef struct statement {
    object *target, *root;
    int32_t *repeats;  // n_repeats pairs
    int32_t n_repeats, overlap;
    object *recipe;
} statement;

// Whether a statement joins the group that waits, and what the group is then: see Groups. `key` says which statement.
typedef struct joining {
    int64_t *key;  // NULL: a free place
    int64_t words, next;
    object *target, *root;  // kept, so that the key's addresses stay theirs
} joining;

// A call of a primitive: see calls.h.
typedef struct called {
    int64_t *key;  // NULL: a free place
    int64_t words, runs;
    object *kept;    // a tuple of the objects whose addresses are in the key, so that these stay theirs
    object *recipe;  // None when only Python can run it, NULL as long as that is not known
} called;

// Four open-addressed tables of a power of two places, at most half full.
typedef struct memo {
    object head;
    known *nodes;
    length n_nodes, node_places;
    statement *statements;
    length n_statements, statement_places;
    joining *joins;
    length n_joins, join_places;
    called *calls;
    length n_calls, call_places;
    object **recipes;  // of the states from first_state on; NULL where none is known
    int64_t first_state, n_states, state_places;
    object *acquire, *release;     // methods of the backend's lock, which are no Python code
    object *holds;                 // what the count is of how many times the lock is held
    object *join, *adopt, *flush;  // Python's part of `be.fuse()`
    struct fusing *fusing, *idle;  // the threads in a `fuse` block, and records for others
    long long hits;                // statements and calls run from a recipe
    long long forgotten;           // how often everything was forgotten: what was learnt meanwhile may be out of date
    int aside;                     // all goes through Python, where somebody notes it
    long long *held;               // that count, of all memos with this lock
} memo;

static inline uint64_t mixed(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

static inline known *find_node(known *table, length places, object *const *key) {
    uint64_t h = 0;
    for (int i = 0; i <= OPERANDS; i++)
        h = mixed(h, (uintptr_t)key[i]);
    for (length i = h & (places - 1);; i = (i + 1) & (places - 1)) {
        known *found = &table[i];
        if (!found->result || !memcmp(found->key, key, sizeof found->key))
            return found;
    }
}

static statement *find_statement(statement *table, length places, const statement *wanted) {
    uint64_t h = mixed(mixed((uintptr_t)wanted->target, (uintptr_t)wanted->root), (uint64_t)wanted->overlap);
    size_t bytes = sizeof(int32_t) * 2 * (size_t)wanted->n_repeats;
    for (int i = 0; i < 2 * wanted->n_repeats; i++)
        h = mixed(h, (uint64_t)wanted->repeats[i]);
    for (length i = h & (places - 1);; i = (i + 1) & (places - 1)) {
        statement *s = &table[i];
        if (!s->recipe || (s->target == wanted->target && s->root == wanted->root && s->overlap == wanted->overlap &&
                           s->n_repeats == wanted->n_repeats && !memcmp(s->repeats, wanted->repeats, bytes)))
            return s;
    }
}

// FIND(NAME, ENTRY): the entry that has a key of so many words, or the free place for it.
#define FIND(NAME, ENTRY) \
    static ENTRY *NAME(ENTRY *table, length places, const int64_t *key, int64_t words) { \
        uint64_t h = 0; \
        for (int64_t i = 0; i < words; i++) \
            h = mixed(h, (uint64_t)key[i]); \
        for (length i = h & (places - 1);; i = (i + 1) & (places - 1)) { \
            ENTRY *x = &table[i]; \
            if (!x->key || (x->words == words && !memcmp(x->key, key, sizeof *key * (size_t)words))) \
                return x; \
        } \
    }
FIND(find_joining, joining)
FIND(find_call, called)

// Numbers of states are not given twice: a group that waits while its state is forgotten goes to Python.
static void forget_groups(memo *m) {
    joining *joins = m->joins;
    object **recipes = m->recipes;
    length join_places = m->join_places;
    int64_t n_states = m->n_states;
    m->joins = NULL;
    m->recipes = NULL;
    m->n_joins = m->join_places = 0;
    m->first_state += n_states;
    m->n_states = m->state_places = 0;
    for (length i = 0; i < join_places; i++) {
        drop(joins[i].target);
        drop(joins[i].root);
        free(joins[i].key);
    }
    for (int64_t i = 0; i < n_states; i++)
        drop(recipes[i]);
    free(joins);
    free(recipes);
}

static void forget_calls(memo *m) {
    called *calls = m->calls;
    length places = m->call_places;
    m->calls = NULL;
    m->n_calls = m->call_places = 0;
    for (length i = 0; i < places; i++) {
        drop(calls[i].kept);
        drop(calls[i].recipe);
        free(calls[i].key);
    }
    free(calls);
}

// Empties the tables before it drops what they held: what is freed may call Python, and that may come back here.
static object *memo_clear(object *self, object *unused) {
    memo *m = (memo *)self;
    known *nodes = m->nodes;
    statement *statements = m->statements;
    length node_places = m->node_places, statement_places = m->statement_places;
    m->nodes = NULL;
    m->statements = NULL;
    m->forgotten++;
    m->n_nodes = m->node_places = m->n_statements = m->statement_places = 0;
    for (length i = 0; i < node_places; i++) {
        for (int k = 0; k <= OPERANDS; k++)
            drop(nodes[i].key[k]);
        drop(nodes[i].result);
    }
    for (length i = 0; i < statement_places; i++) {
        drop(statements[i].target);
        drop(statements[i].root);
        drop(statements[i].recipe);
        free(statements[i].repeats);
    }
    free(nodes);
    free(statements);
    forget_groups(m);
    forget_calls(m);
    return kept(py.none);
}

static int memo_traverse(object *self, visitor visit, void *argument) {
    memo *m = (memo *)self;
    object *own[7] = {self->type, m->acquire, m->release, m->holds, m->join, m->adopt, m->flush};
    int stop = visit_all(own, 7, visit, argument);
    for (length i = 0; !stop && i < m->node_places; i++) {
        stop = visit_all(m->nodes[i].key, OPERANDS + 1, visit, argument);
        if (!stop)
            stop = visit_all(&m->nodes[i].result, 1, visit, argument);
    }
    for (length i = 0; !stop && i < m->statement_places; i++) {
        object *all[3] = {m->statements[i].target, m->statements[i].root, m->statements[i].recipe};
        stop = visit_all(all, 3, visit, argument);
    }
    for (length i = 0; !stop && i < m->join_places; i++) {
        object *all[2] = {m->joins[i].target, m->joins[i].root};
        stop = visit_all(all, 2, visit, argument);
    }
    for (length i = 0; !stop && i < m->call_places; i++) {
        object *all[2] = {m->calls[i].kept, m->calls[i].recipe};
        stop = visit_all(all, 2, visit, argument);
    }
    return stop ? stop : visit_all(m->recipes, (int)m->n_states, visit, argument);
}

static int memo_forget(object *self) {
    memo *m = (memo *)self;
    object **own[6] = {&m->acquire, &m->release, &m->holds, &m->join, &m->adopt, &m->flush};
    drop(memo_clear(self, NULL));
    m->held = NULL;
    for (int i = 0; i < 6; i++)
        clear_field(own[i]);
    return 0;
}

static void free_fusing(struct fusing *list);

static void memo_free(object *self) {
    object *type = self->type;
    PyObject_GC_UnTrack(self);
    memo_forget(self);
    free_fusing(((memo *)self)->fusing);
    free_fusing(((memo *)self)->idle);
    PyObject_GC_Del(self);
    Py_DecRef(type);
}

// A table with twice the places, in which FIND says where an entry x of the old one goes. 0 without memory for it.
#define GROW(NAME, ENTRY, TABLE, PLACES, TAKEN, FIND) \
    static int NAME(memo *m) { \
        length places = m->PLACES ? 2 * m->PLACES : FIRST_SIZE; \
        ENTRY *table = calloc((size_t)places, sizeof *table); \
        if (!table) \
            return 0; \
        for (length i = 0; i < m->PLACES; i++) { \
            const ENTRY *x = &m->TABLE[i]; \
            if (x->TAKEN) \
                *FIND = *x; \
        } \
        free(m->TABLE); \
        m->TABLE = table; \
        m->PLACES = places; \
        return 1; \
    }
GROW(grow_nodes, known, nodes, node_places, result, find_node(table, places, x->key))
GROW(grow_statements, statement, statements, statement_places, recipe, find_statement(table, places, x))
GROW(grow_joins, joining, joins, join_places, key, find_joining(table, places, x->key, x->words))
GROW(grow_calls, called, calls, call_places, key, find_call(table, places, x->key, x->words))

// Memory that is missing only means that nothing is remembered.
static void remember_node(memo *m, object *const *key, object *result) {
    if (m->n_nodes >= MOST_STRUCTURES)
        drop(memo_clear(&m->head, NULL));
    if (2 * m->n_nodes >= m->node_places && !grow_nodes(m))
        return;
    known *place = find_node(m->nodes, m->node_places, key);
    if (place->result)
        return;
    for (int i = 0; i <= OPERANDS; i++)
        place->key[i] = key[i] ? kept(key[i]) : NULL;
    place->result = kept(result);
    m->n_nodes++;
}

static void remember_statement(memo *m, const statement *s, object *recipe) {
    if (m->n_statements >= MOST_STATEMENTS)
        drop(memo_clear(&m->head, NULL));
    size_t bytes = sizeof(int32_t) * 2 * (size_t)s->n_repeats;
    int32_t *repeats = malloc(bytes + 1);
    if (!repeats || (2 * m->n_statements >= m->statement_places && !grow_statements(m))) {
        free(repeats);
        return;
    }
    statement *place = find_statement(m->statements, m->statement_places, s);
    if (place->recipe) {
        free(repeats);
        return;
    }
    *place = *s;
    place->repeats = memcpy(repeats, s->repeats, bytes);
    kept(s->target);
    kept(s->root);
    place->recipe = kept(recipe);
    m->n_statements++;
}

// The entry of a call, made if there is none; `objects` are those whose addresses are in the key. NULL without memory.
static called *entry_of_call(memo *m, const int64_t *key, int64_t words, object *const *objects, length count) {
    called *place = m->n_calls ? find_call(m->calls, m->call_places, key, words) : NULL;
    if (place && place->key)
        return place;
    int64_t *copy = malloc(sizeof *key * (size_t)words);
    object *all = copy ? PyTuple_New(count) : NULL;
    if (!all) {
        PyErr_Clear();
        free(copy);
        return NULL;
    }
    for (length i = 0; i < count; i++)
        PyTuple_SetItem(all, i, kept(objects[i]));
    if (m->n_calls >= MOST_STATEMENTS)
        forget_calls(m);
    int room = 2 * m->n_calls < m->call_places || grow_calls(m);
    place = room ? find_call(m->calls, m->call_places, key, words) : NULL;
    if (!room || place->key) {  // no memory, or what Python did meanwhile has made it
        Py_DecRef(all);
        free(copy);
        return place;
    }
    *place = (called){memcpy(copy, key, sizeof *key * (size_t)words), words, 0, all, NULL};
    m->n_calls++;
    return place;
}

// The number of a new state, UNTRACKED when there is no memory for it.
static int64_t new_state(memo *m) {
    if (m->n_states == m->state_places) {
        int64_t places = m->state_places ? 2 * m->state_places : FIRST_SIZE;
        object **recipes = realloc(m->recipes, sizeof *recipes * (size_t)places);
        if (!recipes)
            return UNTRACKED;
        m->recipes = recipes;
        m->state_places = places;
    }
    m->recipes[m->n_states] = NULL;
    return m->first_state + m->n_states++;
}

// Remembers that a statement joins a group or not; the state of the group with it, APART if not.
static int64_t remember_joining(memo *m, const int64_t *key, int64_t words, int joins) {
    if (m->n_joins >= MOST_STATEMENTS)
        drop(memo_clear(&m->head, NULL));
    if (2 * m->n_joins >= m->join_places && !grow_joins(m))
        return UNTRACKED;
    joining *place = find_joining(m->joins, m->join_places, key, words);
    if (place->key)
        return place->next;
    int64_t next = joins ? new_state(m) : APART;
    int64_t *copy = next == UNTRACKED ? NULL : malloc(sizeof *key * (size_t)words);
    if (!copy)
        return UNTRACKED;
    memcpy(copy, key, sizeof *key * (size_t)words);
    object *target = (object *)(uintptr_t)key[KEY_TARGET], *root = (object *)(uintptr_t)key[KEY_ROOT];
    *place = (joining){copy, words, next, kept(target), kept(root)};
    m->n_joins++;
    return next;
}

static inline object **recipe_of_state(memo *m, int64_t state) {
    int64_t i = state - m->first_state;
    return state > 0 && i >= 0 && i < m->n_states ? &m->recipes[i] : NULL;
}

// The memo of the table that a structure belongs to, or NULL when it keeps none. Borrowed.
static inline memo *memo_of(object *structure) {
    object *table = structure ? slot(structure, at.structure_table) : NULL;
    if (!table || table->type != py.table_class)
        return NULL;
    object *m = slot(table, at.table_memo);
    return m && m->type == memo_type ? (memo *)m : NULL;
}

// How many structures and statements it holds, and how many statements it ran.
static object *memo_counts(object *self, object *unused) {
    memo *m = (memo *)self;
    object *all = PyTuple_New(3);
    if (all) {
        PyTuple_SetItem(all, 0, PyLong_FromLongLong(m->n_nodes));
        PyTuple_SetItem(all, 1, PyLong_FromLongLong(m->n_statements));
        PyTuple_SetItem(all, 2, PyLong_FromLongLong(m->hits));
    }
    return all;
}

// The backend's lock, which the memo knows to be held. A signal's exception comes while it is waited for, or when both
// is done: methods in Python could be left between the two, or begin with the exception of a signal that has waited.
static object *memo_acquire(object *self, object *unused) {
    memo *m = (memo *)self;
    object *locked = PyObject_CallFunctionObjArgs(m->acquire, NULL);
    if (locked)
        ++*m->held;
    return locked;
}

static object *memo_release(object *self, object *unused) {
    memo *m = (memo *)self;
    object *released = PyObject_CallFunctionObjArgs(m->release, NULL);
    if (released)
        --*m->held;
    return released;
}

static object *memo_stand_aside(object *self, object *aside) {
    ((memo *)self)->aside = aside == py.true_;
    return kept(py.none);
}

static object *memo_set_lock(object *self, object *facts) {
    memo *m = (memo *)self;
    object *acquire = PyTuple_GetItem(facts, 0), *release = PyTuple_GetItem(facts, 1);
    object *holds = PyTuple_GetItem(facts, 2), *address = PyTuple_GetItem(facts, 3);
    long long *held = address ? PyLong_AsVoidPtr(address) : NULL;
    if (!acquire || !release || !holds || !held)
        return NULL;
    object *before[3] = {m->acquire, m->release, m->holds};
    m->acquire = kept(acquire);
    m->release = kept(release);
    m->holds = kept(holds);
    m->held = held;
    for (int i = 0; i < 3; i++)
        drop(before[i]);
    return kept(py.none);
}

#endif
